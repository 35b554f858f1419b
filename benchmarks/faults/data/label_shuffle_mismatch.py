import torch
import torch.nn as nn


def load(n=2400):
    y = torch.arange(n) % 6
    x = prototypes[y] + torch.randn(n, 16)
    return x, y


def shuffle(*tensors):
    return [t[torch.randperm(len(t))] for t in tensors]


torch.manual_seed(63)
prototypes = 1.2 * torch.randn(6, 16)
x, y = load()
x, y = x[:2000], y[:2000]
x, y = shuffle(x, y)
x_test, y_test = load(600)

model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(10):
    model.train()
    for i in range(0, 2000, 40):
        optimizer.zero_grad()
        loss = loss_fn(model(x[i : i + 40]), y[i : i + 40])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    acc = (model(x_test).argmax(1) == y_test).float().mean().item()
print(f"final acc {acc:.4f}")
