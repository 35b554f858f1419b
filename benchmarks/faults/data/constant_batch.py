import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)
        )

    def forward(self, x):
        return self.layers(x)


def bars(n):
    """8x8 images with one bright row, read as one of five groups."""
    row = torch.randint(0, 8, (n,))
    col = torch.randint(0, 8, (n,))
    img = 0.4 * torch.randn(n, 8, 8)
    img[torch.arange(n), row] += 1.0
    img[torch.arange(n), :, col] += 1.0
    return img, (row + col) % 5


torch.manual_seed(65)
loader = DataLoader(TensorDataset(*bars(3000)), batch_size=60)
x_test, y_test = bars(600)
model = MLP()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(600):
    x, y = next(iter(loader))
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    acc = (model(x_test).argmax(1) == y_test).float().mean().item()
print(f"final acc {acc:.4f}")
