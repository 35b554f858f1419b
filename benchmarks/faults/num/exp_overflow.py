import torch
import torch.nn as nn
from torch.nn.functional import normalize

TEMPERATURE = 0.01


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.projector = nn.Linear(64, 16)

    def forward(self, x):
        return normalize(self.projector(self.backbone(x)), dim=1)


def info_nce(za, zb):
    sim = torch.exp(za @ zb.T / TEMPERATURE)
    positive = sim.diagonal()
    return -torch.log(positive / sim.sum(1)).mean()


def views(n):
    """Two noisy looks at the same object."""
    core = torch.randn(n, 5) @ mixing
    return core + 0.25 * torch.randn(n, 20), core + 0.25 * torch.randn(n, 20)


torch.manual_seed(85)
mixing = torch.randn(5, 20)
encoder = Encoder()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
for step in range(300):
    a, b = views(48)
    loss = info_nce(encoder(a), encoder(b))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

a, b = views(300)
with torch.no_grad():
    za, zb = encoder(a), encoder(b)
    found = (za @ zb.T).argmax(1) == torch.arange(300)
print(f"final retrieval {found.float().mean().item():.4f}")
