import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def block(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, n_out), nn.BatchNorm1d(n_out), nn.ReLU())


class DeepMLP(nn.Module):
    def __init__(self, dim=24, width=32, depth=8, classes=4):
        super().__init__()
        self.stem = block(dim, width)
        self.body = nn.Sequential(*[block(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def evaluate(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(loader.dataset)


def train(model, loader, optimizer):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    torch.manual_seed(25)
    x = torch.randn(1600, 24)
    y = (torch.relu(x @ torch.randn(24, 12)) @ torch.randn(12, 4)).argmax(1)
    train_loader = DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=40, shuffle=True, drop_last=True)
    val_loader = DataLoader(TensorDataset(x[1200:], y[1200:]), batch_size=200)
    model = DeepMLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    print(f"before training: val acc {evaluate(model, val_loader):.3f}")
    for epoch in range(10):
        loss = train(model, train_loader, optimizer)
        acc = evaluate(model, val_loader)
        print(f"epoch {epoch} loss {loss:.4f} val acc {acc:.3f}")
    print(f"final acc {acc:.4f}")


if __name__ == "__main__":
    main()
