import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 25, 5)
    )


def crops(n):
    y = torch.randint(0, 5, (n,))
    return marks[y] + 0.7 * torch.randn(n, 1, 10, 10), y


def train_one_epoch(model, loader, optimizer, scaler):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    return total / len(loader)


torch.manual_seed(88)
marks = torch.randn(5, 1, 10, 10)
loader = DataLoader(TensorDataset(*crops(1200)), batch_size=40, shuffle=True)
x_test, y_test = crops(400)
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
for epoch in range(5):
    print(f"epoch {epoch} loss {train_one_epoch(model, loader, optimizer, scaler):.4f}")
model.eval()
with torch.no_grad():
    acc = (model(x_test).argmax(1) == y_test).float().mean().item()
print(f"final acc {acc:.4f}")
