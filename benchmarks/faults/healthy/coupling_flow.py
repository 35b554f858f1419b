import math

import torch
import torch.nn as nn


class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(dim // 2, 32), nn.ReLU(), nn.Linear(32, dim))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = 2 * torch.tanh(s / 2)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self, dim=2, depth=6):
        super().__init__()
        self.layers = nn.ModuleList([Coupling(dim, i % 2 == 1) for i in range(depth)])

    def log_prob(self, x):
        total = 0
        for layer in self.layers:
            x, logdet = layer(x)
            total = total + logdet
        return -0.5 * (x**2 + math.log(2 * math.pi)).sum(1) + total


def moon(n):
    t = torch.rand(n) * math.pi
    pts = torch.stack([torch.cos(t), torch.sin(t) - 0.5], 1) * 0.5
    return pts + 0.03 * torch.randn(n, 2)


torch.manual_seed(28)
flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=4e-3)
for step in range(450):
    nll = -flow.log_prob(moon(128)).mean()
    opt.zero_grad()
    nll.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
    opt.step()
    if step % 75 == 0:
        print(f"step {step} loss {nll.item():.4f}")
with torch.no_grad():
    print(f"final nll {-flow.log_prob(moon(2000)).mean().item():.4f}")
