import math

import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        weights = torch.softmax(scores, dim=1)
        out = (weights @ v).transpose(1, 2).reshape(b, t, d)
        return self.proj(out)


class PriceGuide(nn.Module):
    """Listings of several kinds and their prices; the last entry asks for the mean price of one kind."""

    def __init__(self, kinds=4, dim=32):
        super().__init__()
        self.kind = nn.Embedding(kinds, dim)
        self.price = nn.Linear(1, dim)
        self.attn = SelfAttention(dim, 2)
        self.out = nn.Linear(dim, 1)

    def forward(self, kind, price):
        h = self.kind(kind) + self.price(price[..., None])
        return self.out(self.attn(h)[:, -1]).squeeze(-1)


def market(n, items=16):
    kind = torch.randint(0, 4, (n, items))
    level = torch.randn(n, 4)
    price = level.gather(1, kind) + 0.2 * torch.randn(n, items)
    same = (kind == kind[:, :1]).float()
    mean = (price * same).sum(1) / same.sum(1)
    return torch.cat([kind, kind[:, :1]], 1), torch.cat([price, torch.zeros(n, 1)], 1), mean


torch.manual_seed(23)
model = PriceGuide()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(400):
    kind, price, mean = market(64)
    loss = nn.functional.mse_loss(model(kind, price), mean)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 80 == 0:
        print(f"step {step} loss {loss.item():.4f}")
kind, price, mean = market(1000)
with torch.no_grad():
    print(f"final mse {nn.functional.mse_loss(model(kind, price), mean).item():.5f}")
