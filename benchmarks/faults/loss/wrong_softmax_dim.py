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


class Lookup(nn.Module):
    """Pairs (key, value) followed by one key: answer with its value."""

    def __init__(self, keys=8, values=8, dim=32):
        super().__init__()
        self.key_emb = nn.Embedding(keys, dim)
        self.val_emb = nn.Embedding(values + 1, dim)
        self.attn = SelfAttention(dim, 2)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, values)

    def forward(self, k, v):
        h = self.key_emb(k) + self.val_emb(v)
        return self.out(self.norm(self.attn(h)[:, -1]))


def episode(n):
    k = torch.rand(n, 8).argsort(1)
    v = torch.randint(0, 8, (n, 8))
    pick = torch.randint(0, 8, (n, 1))
    k = torch.cat([k, k.gather(1, pick)], 1)
    return k, torch.cat([v, torch.full((n, 1), 8)], 1), v.gather(1, pick)[:, 0]


torch.manual_seed(23)
model = Lookup()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(400):
    k, v, y = episode(64)
    loss = nn.functional.cross_entropy(model(k, v), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 80 == 0:
        print(f"step {step} loss {loss.item():.4f}")
k, v, y = episode(1000)
with torch.no_grad():
    print(f"final acc {(model(k, v).argmax(1) == y).float().mean().item():.4f}")
