import math

import torch
from torch import nn

torch.manual_seed(40)
MAX, D = 9, 24


class SetAttention(nn.Module):
    """Single-head attention over variable-size sets, padded at the end."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, D)
        self.q = nn.Linear(D, D)
        self.k = nn.Linear(D, D)
        self.v = nn.Linear(D, D)
        self.out = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 1))

    def forward(self, x, lens):
        pad = torch.arange(x.shape[1])[None] >= lens[:, None]
        h = self.embed(x)
        scores = self.q(h) @ self.k(h).transpose(1, 2) / math.sqrt(D)
        scores = scores.masked_fill(pad[:, None, :], float("-inf"))
        h = h + scores.softmax(-1) @ self.v(h)
        h = h.masked_fill(pad[..., None], 0).sum(1) / lens[:, None]
        return self.out(h)


def draw(n):
    lens = torch.randint(1, MAX + 1, (n,))
    x = torch.randn(n, MAX, 4)
    pad = torch.arange(MAX)[None] >= lens[:, None]
    x = x.masked_fill(pad[..., None], 0)
    target = (x[..., 0] * x[..., 1]).sum(1, keepdim=True) / lens[:, None]
    return x, lens, target


model = SetAttention()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for step in range(600):
    x, lens, y = draw(64)
    loss = nn.functional.mse_loss(model(x, lens), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print("step", step, "loss", round(loss.item(), 4))
with torch.no_grad():
    x, lens, y = draw(2000)
    r2 = 1 - nn.functional.mse_loss(model(x, lens), y) / y.var()
print(f"final r2 {r2.item():.4f}")
