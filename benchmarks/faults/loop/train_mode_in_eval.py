import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(29)
patterns = torch.randn(10, 1, 8, 8)


def dataset(n):
    y = torch.randint(0, 10, (n,))
    return TensorDataset(patterns[y] + 1.1 * torch.randn(n, 1, 8, 8), y)


train_loader = DataLoader(dataset(1500), batch_size=50, shuffle=True)
test_loader = DataLoader(dataset(400), batch_size=2)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.5),
    nn.Linear(256, 64),
    nn.ReLU(),
    nn.Dropout(0.5),
    nn.Linear(64, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(6):
    model.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()

    correct = 0
    with torch.no_grad():
        for images, labels in test_loader:
            outputs = model(images)
            correct += (outputs.argmax(1) == labels).sum().item()
    print(f"epoch {epoch} loss {loss.item():.4f} test acc {correct / 400:.4f}")
print(f"final acc {correct / 400:.4f}")
