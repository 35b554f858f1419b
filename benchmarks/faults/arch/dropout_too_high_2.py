import torch
import torch.nn as nn
import torch.nn.functional as F


class TagNet(nn.Module):
    def __init__(self, keep=0.92):
        super().__init__()
        self.keep = keep
        self.first = nn.Linear(20, 48)
        self.second = nn.Linear(48, 48)
        self.last = nn.Linear(48, 4)

    def forward(self, x):
        x = F.dropout(F.relu(self.first(x)), self.keep, self.training)
        x = F.dropout(F.relu(self.second(x)), self.keep, self.training)
        return self.last(x)


def tags(n):
    x = torch.randn(n, 20)
    return x, (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] + x[:, 3] * x[:, 4] > 0).long()


torch.manual_seed(6)
x, y = tags(4000)
x_test, y_test = tags(1000)
net = TagNet()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(10):
    net.train()
    for rows in torch.randperm(len(x)).split(80):
        loss = F.cross_entropy(net(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        accuracy = (net(x_test).argmax(1) == y_test).float().mean().item()
    print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.3f}")
print(f"final accuracy {accuracy:.4f}")
