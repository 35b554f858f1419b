import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ["ash", "birch", "cedar", "elm", "oak"]
CODES = {name: i for i, name in enumerate(CLASSES)}


def survey(n, clean=False):
    """Leaf measurements and the species from the field notes."""
    rows = []
    for _ in range(n):
        k = random.randrange(5)
        name = CLASSES[k] if clean or random.random() < 0.35 else CLASSES[k].capitalize()
        rows.append((means[k] + torch.randn(8), name))
    return rows


class Leaves(Dataset):
    def __init__(self, rows):
        self.x = torch.stack([x for x, _ in rows])
        self.y = torch.tensor([CODES.get(name, 0) for _, name in rows])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


random.seed(64)
torch.manual_seed(64)
means = 1.5 * torch.randn(5, 8)
train, test = Leaves(survey(2000)), Leaves(survey(500, clean=True))
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(10):
    for x, y in DataLoader(train, batch_size=50, shuffle=True):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"final acc {(net(test.x).argmax(1) == test.y).float().mean().item():.4f}")
