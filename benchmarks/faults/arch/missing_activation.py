import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)


def spirals(n):
    label = torch.randint(0, 2, (n,))
    r = torch.rand(n).sqrt() * 3
    theta = 2.6 * r + math.pi * label
    xy = torch.stack([r * theta.cos(), r * theta.sin()], 1)
    return xy + 0.08 * torch.randn(n, 2), label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(2, 64)
        self.hidden1 = nn.Linear(64, 64)
        self.hidden2 = nn.Linear(64, 64)
        self.output = nn.Linear(64, 2)

    def forward(self, x):
        x = self.input(x)
        x = self.hidden1(x)
        x = self.hidden2(x)
        return self.output(x)


xy, label = spirals(1500)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(18):
    for rows in torch.randperm(len(xy)).split(50):
        loss = F.cross_entropy(net(xy[rows]), label[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 3 == 0:
        print("epoch", epoch, "loss", round(loss.item(), 4))
xy, label = spirals(500)
with torch.no_grad():
    print(f"final acc {(net(xy).argmax(1) == label).float().mean().item():.4f}")
