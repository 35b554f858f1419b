import torch
import torch.nn as nn


class VAE(nn.Module):
    def __init__(self, dim=20, latent=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Linear(48, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.ReLU(), nn.Linear(48, dim))

    @torch.no_grad()
    def encode(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        return mu, logvar.clamp(-8, 8)

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


def elbo(recon, x, mu, logvar, beta=0.02):
    rec = (recon - x).pow(2).sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return rec + beta * kl, rec


torch.manual_seed(20)
factors = torch.randn(2000, 3)
data = torch.tanh(factors @ torch.randn(3, 20)) + 0.05 * torch.randn(2000, 20)
vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=3e-3)
for epoch in range(15):
    for idx in torch.randperm(2000).split(50):
        recon, mu, logvar = vae(data[idx])
        loss, rec = elbo(recon, data[idx], mu, logvar)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 3 == 0:
        print(f"epoch {epoch} elbo {loss.item():.3f} rec {rec.item():.3f}")

with torch.no_grad():
    mu, _ = vae.encode(data)
    error = (vae.decoder(mu) - data).pow(2).mean().item()
print(f"final mse {error:.5f}")
