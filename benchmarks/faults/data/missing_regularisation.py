import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(72)
signal = torch.zeros(60)
signal[:12] = torch.randn(12)


def patients(n):
    genes = torch.randn(n, 60)
    risk = genes @ signal / 1.5 + 2.5 * torch.randn(n)
    return genes, (risk > 0).float()


train_x, train_y = patients(250)
val_x, val_y = patients(800)
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=25, shuffle=True)
model = nn.Sequential(nn.Linear(60, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
criterion = nn.BCEWithLogitsLoss()


def validate():
    model.eval()
    with torch.no_grad():
        value = criterion(model(val_x).squeeze(1), val_y).item()
    model.train()
    return value


for epoch in range(120):
    train_loss = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        train_loss += loss.item() / len(loader)
    if epoch % 12 == 11:
        print(f"epoch {epoch} train loss {train_loss:.4f} val loss {validate():.4f}")
print(f"final val_loss {validate():.4f}")
