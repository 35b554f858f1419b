import torch
import torch.nn as nn


class VAE(nn.Module):
    def __init__(self, latent=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(24, 48), nn.Tanh())
        self.mu = nn.Linear(48, latent)
        self.logvar = nn.Linear(48, latent)
        self.dec = nn.Sequential(nn.Linear(latent, 48), nn.Tanh(), nn.Linear(48, 24))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.dec(z), mu, logvar


def vae_loss(recon, x, mu, logvar, beta=0.1):
    rec = (recon - x).pow(2).sum(1).mean()
    kld = 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
    return rec + beta * kld, rec, kld


torch.manual_seed(17)
factors = torch.randn(2000, 3)
data = torch.sin(factors @ torch.randn(3, 24)) + 0.05 * torch.randn(2000, 24)

vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=2e-3)
for epoch in range(12):
    for rows in torch.randperm(1800).split(60):
        x = data[rows]
        recon, mu, logvar = vae(x)
        loss, rec, kld = vae_loss(recon, x, mu, logvar)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 2 == 0:
        print(f"epoch {epoch} loss {loss.item():.3f} rec {rec.item():.3f} kld {kld.item():.3f}")

vae.eval()
with torch.no_grad():
    held_out = data[1800:]
    recon, _, _ = vae(held_out)
print(f"final mse {(recon - held_out).pow(2).mean().item():.5f}")
