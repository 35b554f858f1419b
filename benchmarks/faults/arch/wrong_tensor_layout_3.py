import torch
import torch.nn as nn


class SetScorer(nn.Module):
    """Is the largest element of the set close to the sum of the two smallest?"""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.attend = nn.MultiheadAttention(width, 4)
        self.norm = nn.LayerNorm(width)
        self.score = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, values):
        h = self.embed(values.unsqueeze(-1))
        mixed, _ = self.attend(h, h, h)
        return self.score(self.norm(h + mixed).mean(1)).squeeze(-1)


def sets(n, size=6):
    values = torch.rand(n, size)
    ordered = values.sort(1).values
    return values, ordered[:, -1] - ordered[:, 0] - ordered[:, 1]


torch.manual_seed(17)
model = SetScorer()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(400):
    values, wanted = sets(128)
    loss = nn.functional.mse_loss(model(values), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        print(f"step {step} mse {loss.item():.4f}")
values, wanted = sets(1000)
with torch.no_grad():
    print(f"final mse {nn.functional.mse_loss(model(values), wanted).item():.5f}")
