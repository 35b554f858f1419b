import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(23)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(2, 8, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 4, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.encoder(x).mean(dim=2))


def make_data(n):
    y = torch.randint(0, 4, (n,))
    t = torch.arange(32.0)
    lag = (y + 1).float()[:, None] * 0.7
    base = 0.9 * t + 6.28 * torch.rand(n, 1)
    x = torch.stack([torch.sin(base), torch.sin(base + lag)], dim=1)
    return TensorDataset(x + 0.2 * torch.randn_like(x), y)


train_dl = DataLoader(make_data(1600), batch_size=32, shuffle=True)
valid_dl = DataLoader(make_data(400), batch_size=400)

model = Classifier()
for param in model.encoder.parameters():
    param.requires_grad = False
optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=5e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(8):
    model.train()
    for xb, yb in train_dl:
        loss = criterion(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        acc = sum((model(xb).argmax(1) == yb).float().mean().item() for xb, yb in valid_dl)
    print(f"epoch {epoch} loss {loss.item():.4f} valid acc {acc:.3f}")
print(f"final acc {acc:.4f}")
