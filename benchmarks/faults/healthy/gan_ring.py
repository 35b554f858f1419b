import math

import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm

torch.manual_seed(3)
LATENT = 4
BATCH = 96


def sample_ring(n):
    a = 2 * math.pi * torch.rand(n)
    r = 3.0 + 0.1 * torch.randn(n)
    return torch.stack([r * torch.cos(a), r * torch.sin(a)], 1)


G = nn.Sequential(nn.Linear(LATENT, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
D = nn.Sequential(
    spectral_norm(nn.Linear(2, 48)),
    nn.LeakyReLU(0.2),
    spectral_norm(nn.Linear(48, 48)),
    nn.LeakyReLU(0.2),
    nn.Linear(48, 1),
)
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.99))
opt_d = torch.optim.Adam(D.parameters(), lr=4e-3, betas=(0.5, 0.99))
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)

for it in range(600):
    real = sample_ring(BATCH)
    fake = G(torch.randn(BATCH, LATENT))

    opt_d.zero_grad()
    d_loss = bce(D(real), ones) + bce(D(fake.detach()), zeros)
    d_loss.backward()
    opt_d.step()

    opt_g.zero_grad()
    g_loss = bce(D(fake), ones)
    g_loss.backward()
    opt_g.step()

    if it % 100 == 0:
        print(f"it {it} D {d_loss.item():.3f} G {g_loss.item():.3f}")

G.eval()
with torch.no_grad():
    pts = G(torch.randn(2000, LATENT))
radius_err = (pts.norm(dim=1) - 3).abs().mean().item()
centre_err = pts.mean(0).norm().item()
print(f"radius error {radius_err:.3f} centre error {centre_err:.3f}")
print(f"final err {radius_err + centre_err:.4f}")
