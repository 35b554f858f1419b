import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mix = nn.Sequential(nn.Linear(tokens, 24), nn.GELU(), nn.Linear(24, tokens))
        self.chan_mix = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, dim))

    def forward(self, x):
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan_mix(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, dim=24, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 4, stride=4)
        self.blocks = nn.ModuleList([MixerBlock(9, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for blk in self.blocks:
            x = checkpoint(blk, x, use_reentrant=True) if self.training else blk(x)
        return self.head(x.mean(1))


def strokes(n):
    """Which corner holds the dot, relative to the centre mark?"""
    y = torch.randint(0, 4, (n,))
    img = 0.2 * torch.randn(n, 1, 12, 12)
    dy, dx = (y // 2) * 2 - 1, (y % 2) * 2 - 1
    cy, cx = torch.randint(3, 9, (n,)), torch.randint(3, 9, (n,))
    rows = torch.arange(n)
    img[rows, 0, cy, cx] += 3.0
    img[rows, 0, cy + 2 * dy, cx + 2 * dx] -= 3.0
    return img, y


torch.manual_seed(25)
model = Mixer()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
model.train()
for step in range(300):
    x, y = strokes(40)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
model.eval()
x, y = strokes(600)
with torch.no_grad():
    print(f"final acc {(model(x).argmax(1) == y).float().mean().item():.4f}")
