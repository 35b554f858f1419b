"""The first script of the tutorial: a network on two spirals, with a learning rate to be given: `tutorial.py 5.0`."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def spirals(count=800):
    labels = torch.randint(2, (count,))
    turn = torch.rand(count) * 4
    angle = turn + labels * 3.1416
    points = torch.stack((turn * angle.cos(), turn * angle.sin()), 1) / 4
    return points + 0.02 * torch.randn(count, 2), labels


def main():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*spirals()), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    rate = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(8):
        for points, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(points), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
