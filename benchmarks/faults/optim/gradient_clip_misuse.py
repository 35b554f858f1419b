import torch
import torch.nn as nn


class SeqRegressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        h, _ = self.lstm(x)
        return self.out(h[:, -1]).squeeze(-1)


def sample(n, length=10):
    values = torch.rand(n, length)
    marks = torch.zeros(n, length)
    marks[:, 0] = 1
    marks[torch.arange(n), torch.randint(1, length, (n,))] = 1
    return torch.stack([values, marks], -1), (values * marks).sum(1)


torch.manual_seed(5)
net = SeqRegressor()
opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
loss_fn = nn.MSELoss()
for step in range(600):
    x, y = sample(64)
    loss = loss_fn(net(x), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), max_norm=1e-4)
    opt.step()
    if step % 100 == 0:
        print(f"{step:5d} loss {loss.item():.5f}")

x, y = sample(1000)
with torch.no_grad():
    print(f"final mse {loss_fn(net(x), y).item():.5f}")
