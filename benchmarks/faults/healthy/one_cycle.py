import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
EPOCHS = 12
n, d, k = 2400, 24, 8
proto = torch.randn(k, d) * 0.7
labels = torch.randint(0, k, (n,))
feats = proto[labels] + torch.randn(n, d)
feats = feats + 0.3 * torch.sin(3 * feats.roll(1, 1))
train = DataLoader(TensorDataset(feats[:2000], labels[:2000]), batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(d, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, k))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, epochs=EPOCHS, steps_per_epoch=len(train))

for epoch in range(EPOCHS):
    model.train()
    running = 0.0
    for xb, yb in train:
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
    model.eval()
    with torch.no_grad():
        acc = (model(feats[2000:]).argmax(1) == labels[2000:]).float().mean().item()
    print(f"epoch {epoch} lr {scheduler.get_last_lr()[0]:.4f} loss {running / len(train):.4f} val acc {acc:.3f}")
print(f"final acc {acc:.4f}")
