import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def load_listings(n, rng):
    """Flats: area, rooms, year, distance to the centre, income of the district."""
    area = rng.normal(80, 25, n)
    rooms = rng.integers(1, 6, n)
    year = rng.integers(1900, 2020, n)
    distance = rng.exponential(5, n)
    income = rng.normal(42000, 9000, n)
    quick = (area - 80) / 25 - distance / 3 + (rooms - 3) + (year - 1960) / 35 + 1.0
    label = (quick + 0.3 * rng.normal(size=n) > 0).astype(np.int64)
    table = np.column_stack([area, rooms, year, distance, income]).astype(np.float32)
    return torch.from_numpy(table), torch.from_numpy(label)


class Listing(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)


rng = np.random.default_rng(60)
torch.manual_seed(60)
x, y = load_listings(2500, rng)
train = DataLoader(TensorDataset(x[:2000], y[:2000]), batch_size=40, shuffle=True)
model = Listing()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(10):
    losses = []
    for xb, yb in train:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {np.mean(losses):.4f}")
with torch.no_grad():
    acc = (model(x[2000:]).argmax(1) == y[2000:]).float().mean().item()
print(f"final acc {acc:.4f}")
