"""A generator of waiting times, trained with the energy distance between its samples and the observed ones."""

import torch
from torch import nn


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softplus())

    def forward(self, noise):
        return self.net(noise).squeeze(1)


def observed(n):
    return torch.distributions.Gamma(2.0, 1.5).sample((n,))


def energy(made, seen):
    across = (made.view(-1, 1) - seen.view(1, -1)).abs().mean()
    within = torch.cdist(made.view(-1, 1), made.view(-1, 1), p=1).mean()
    return 2 * across - within - (seen.view(-1, 1) - seen.view(1, -1)).abs().mean()


torch.manual_seed(8)
model = Sampler()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(500):
    loss = energy(model(torch.randn(96, 2)), observed(96))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} energy {loss.item():.4f}")
with torch.no_grad():
    gap = (model(torch.randn(4000, 2)).sort().values - observed(4000).sort().values).abs().mean()
print(f"final gap {gap.item():.4f}")
