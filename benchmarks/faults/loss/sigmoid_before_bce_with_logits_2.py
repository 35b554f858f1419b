"""Fault alarm of a pump from twelve sensors: the mean vote of five small networks."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Member(nn.Module):
    def __init__(self, sensors, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(sensors, width), nn.ReLU())
        self.vote = nn.Linear(width, 1)

    def forward(self, x):
        return torch.sigmoid(self.vote(self.body(x)))


class Committee(nn.Module):
    def __init__(self, sensors, size=5):
        super().__init__()
        self.members = nn.ModuleList(Member(sensors) for _ in range(size))

    def forward(self, x):
        votes = torch.stack([member(x) for member in self.members])
        return votes.mean(0).squeeze(1)


def readings(n):
    x = torch.randn(n, 12)
    risk = x[:, 0] * x[:, 1] + x[:, 2] - 1.2
    return x, (risk + 0.2 * torch.randn(n) > 0).float()


torch.manual_seed(3)
x, y = readings(3000)
x_test, y_test = readings(1000)
model = Committee(12)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(8):
    for rows in torch.randperm(len(x)).split(60):
        loss = F.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"final loss {F.binary_cross_entropy_with_logits(model(x_test), y_test).item():.4f}")
