import torch
import torch.nn as nn
import torch.nn.functional as F


def real_samples(n):
    u = torch.randn(n, 1)
    return torch.cat([2 + 0.6 * u, -1 + 0.4 * u], 1) + 0.2 * torch.randn(n, 2)


def mlp(n_in, n_out):
    return nn.Sequential(
        nn.Linear(n_in, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, n_out)
    )


def main():
    torch.manual_seed(11)
    G, D = mlp(4, 2), mlp(2, 1)
    opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.999))
    for step in range(700):
        opt_g.zero_grad()
        opt_d.zero_grad()

        # discriminator
        real = real_samples(64)
        fake = G(torch.randn(64, 4))
        loss_d = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
        loss_d.backward()
        opt_d.step()

        # generator
        fake = G(torch.randn(64, 4))
        loss_g = F.softplus(-D(fake)).mean()
        loss_g.backward()
        opt_g.step()
        if step % 100 == 0:
            print(f"step {step} loss D {loss_d.item():.3f} G {loss_g.item():.3f}")

    with torch.no_grad():
        fake, real = G(torch.randn(2000, 4)), real_samples(2000)
        gap = torch.sort(fake, 0)[0].sub(torch.sort(real, 0)[0]).abs().mean().item()
    print(f"final distance {gap:.4f}")


if __name__ == "__main__":
    main()
