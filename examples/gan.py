"""A generator and a discriminator on points of a ring. `--attached` forgets to cut the one from the other."""

import sys

import torch
from torch import nn


def ring(count):
    angle = torch.rand(count) * 6.2832
    return torch.stack((angle.cos(), angle.sin()), 1) + 0.05 * torch.randn(count, 2)


def main():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    for step in range(150):
        g_optimizer.zero_grad()
        d_optimizer.zero_grad()
        fake = generator(torch.randn(64, 8))
        shown = fake if "--attached" in sys.argv else fake.detach()
        d_loss = criterion(discriminator(ring(64)), ones) + criterion(discriminator(shown), zeros)
        d_loss.backward(retain_graph="--attached" in sys.argv)
        d_optimizer.step()
        g_loss = criterion(discriminator(fake), ones)
        g_loss.backward()
        g_optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: discriminator {d_loss.item():.3f}, generator {g_loss.item():.3f}")


if __name__ == "__main__":
    main()
