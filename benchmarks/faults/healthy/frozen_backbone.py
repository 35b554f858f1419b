import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        return F.relu(self.bn2(self.conv2(x))).mean((2, 3))


def gratings(n, angles):
    y = torch.randint(0, len(angles), (n,))
    a = torch.tensor(angles)[y].view(n, 1, 1)
    g = torch.arange(12.0)
    img = torch.sin(1.3 * (g[:, None] * torch.cos(a) + g * torch.sin(a)) + 6.28 * torch.rand(n, 1, 1))
    return (img + 0.3 * torch.randn(n, 12, 12)).unsqueeze(1), y


def fit(params, forward, angles, steps, lr):
    opt = torch.optim.Adam(params, lr=lr)
    for step in range(steps):
        x, y = gratings(48, angles)
        loss = F.cross_entropy(forward(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"  step {step} loss {loss.item():.4f}")


torch.manual_seed(4)
path = os.path.join(tempfile.mkdtemp(), "backbone.pt")
source, new = [0.0, 0.4, 0.8, 1.2, 1.6, 2.0], [0.2, 1.0, 2.4]
pre, pre_head = Backbone(), nn.Linear(16, 6)
fit([*pre.parameters(), *pre_head.parameters()], lambda x: pre_head(pre(x)), source, 200, 5e-3)
torch.save(pre.state_dict(), path)

backbone = Backbone()
backbone.load_state_dict(torch.load(path))
backbone.requires_grad_(False).eval()
head = nn.Linear(16, 3)
fit(head.parameters(), lambda x: head(backbone(x)), new, 200, 3e-2)

x, y = gratings(600, new)
untrained = nn.Sequential(Backbone(), nn.Linear(16, 3)).eval()
with torch.no_grad():
    print(f"chance level {(untrained(x).argmax(1) == y).float().mean().item():.3f}")
    print(f"final acc {(head(backbone(x)).argmax(1) == y).float().mean().item():.4f}")
