import torch
import torch.nn as nn


class Volatility(nn.Module):
    def __init__(self, dim=6, hidden=32):
        super().__init__()
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.mean = nn.Linear(hidden, 1)
        self.log_std = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.mean(h).squeeze(-1), self.log_std(h).squeeze(-1)


def nll(mean, log_std, target):
    z = (target - mean) * torch.exp(-log_std)
    return (0.5 * z * z + log_std).mean()


def returns(n, length=20):
    x = torch.randn(n, length, 6)
    scale = 0.02 * torch.exp(0.5 * x[..., 0])
    shock = torch.distributions.StudentT(2.2).sample((n, length))
    return x, 0.1 * x[..., 1] + scale * shock


torch.manual_seed(14)
model = Volatility()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    x, y = returns(16)
    mean, log_std = model(x)
    loss = nll(mean, log_std, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
x, y = returns(256)
with torch.no_grad():
    print(f"final nll {nll(*model(x), y).item():.4f}")
