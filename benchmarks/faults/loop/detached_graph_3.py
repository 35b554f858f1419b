import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def robust_scale(h):
    """Centre and scale features by median and spread."""
    a = h.detach().numpy()
    mid = np.median(a, axis=1, keepdims=True)
    spread = np.abs(a - mid).mean(axis=1, keepdims=True) + 1e-4
    return torch.from_numpy((a - mid) / spread)


class Fusion(nn.Module):
    def __init__(self, d_audio=20, d_meta=4, classes=6):
        super().__init__()
        self.audio = nn.Sequential(nn.Linear(d_audio, 32), nn.Tanh(), nn.Linear(32, 6))
        self.meta = nn.Sequential(nn.Linear(d_meta, 16), nn.ReLU(), nn.Linear(16, 6))
        self.gate = nn.Parameter(torch.zeros(6))

    def forward(self, a, m):
        mix = torch.sigmoid(self.gate)
        return 2.0 * mix * robust_scale(self.audio(a)) + self.meta(m)


def make(n):
    y = torch.randint(0, 6, (n,))
    a = torch.randn(n, 20)
    a[:, :6] += 2.0 * F.one_hot(y, 6)
    m = torch.randn(n, 4)
    m[:, 0] += 0.5 * (y % 2)
    return a, m, y


torch.manual_seed(7)
a, m, y = make(3000)
net = Fusion()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(400):
    pick = torch.randint(0, 2400, (64,))
    loss = F.cross_entropy(net(a[pick], m[pick]), y[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 80 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    acc = (net(a[2400:], m[2400:]).argmax(1) == y[2400:]).float().mean().item()
print(f"final accuracy {acc:.4f}")
