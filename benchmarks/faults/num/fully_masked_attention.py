import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SetAttention(nn.Module):
    """One learned query pools a set of items."""

    def __init__(self, dim):
        super().__init__()
        self.q = nn.Parameter(torch.randn(dim) / math.sqrt(dim))
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)

    def forward(self, h, mask):
        scores = self.k(h) @ self.q
        scores = scores.masked_fill(~mask, float("-inf"))
        return (torch.softmax(scores, dim=1).unsqueeze(-1) * self.v(h)).sum(1)


class Basket(nn.Module):
    def __init__(self, items=40, dim=24):
        super().__init__()
        self.emb = nn.Embedding(items, dim, padding_idx=0)
        self.attn = SetAttention(dim)
        self.out = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        return self.out(self.attn(self.emb(ids), ids != 0)).squeeze(1)


def orders(n, width=8):
    """Item ids of past orders, zero-padded; customers have placed up to eight."""
    ids = torch.randint(1, 40, (n, width))
    count = torch.distributions.Binomial(width, torch.tensor(0.55)).sample((n,))
    ids = ids * (torch.arange(width) < count[:, None])
    best = worth[ids].masked_fill(ids == 0, 0.0).amax(1)
    return ids, best + 0.05 * torch.randn(n)


torch.manual_seed(89)
worth = torch.rand(40) * 2
ids, value = orders(4000)
model = Basket()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(6):
    for rows in torch.randperm(3600).split(60):
        loss = F.mse_loss(model(ids[rows]), value[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    test = F.mse_loss(model(ids[3600:]), value[3600:])
print(f"final mse {test.item():.5f}")
