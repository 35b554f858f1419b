import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, d=20, z=2):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 48), nn.ReLU())
        self.mu, self.logvar = nn.Linear(48, z), nn.Linear(48, z)
        self.dec = nn.Sequential(nn.Linear(z, 48), nn.ReLU(), nn.Linear(48, d))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


torch.manual_seed(15)
latent = torch.randn(2000, 2)
mix = torch.randn(2, 20)
data = torch.tanh(latent @ mix) + 0.05 * torch.randn(2000, 20)

vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=3e-3)
EPOCHS, WARM = 20, 8
for epoch in range(EPOCHS):
    beta = min(1.0, epoch / WARM) * 0.05
    tot_rec = tot_kl = 0.0
    batches = torch.randperm(2000).split(50)
    for b in batches:
        rec, mu, logvar = vae(data[b])
        rec_loss = F.mse_loss(rec, data[b], reduction="none").sum(1).mean()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        loss = rec_loss + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        tot_rec += rec_loss.item()
        tot_kl += kl.item()
    print(f"epoch {epoch} beta {beta:.3f} rec {tot_rec / len(batches):.4f} kl {tot_kl / len(batches):.3f}")
vae.eval()
with torch.no_grad():
    h = vae.enc(data)
    print(f"final mse {F.mse_loss(vae.dec(vae.mu(h)), data).item():.4f}")
