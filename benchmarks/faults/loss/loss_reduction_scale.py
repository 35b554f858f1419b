import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def build(width=64):
    return nn.Sequential(
        nn.Linear(8, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 3),
    )


def friedman(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 8, generator=gen)
    a = torch.sin(3.14 * x[:, 0] * x[:, 1])
    b = 2 * (x[:, 2] - 0.5) ** 2 + x[:, 3]
    c = x[:, 4] * x[:, 5] - x[:, 6]
    y = torch.stack([a, b, c], 1)
    return 2 * x - 1, (y - y.mean(0)) / y.std(0)


def train_epoch(model, loader, criterion, optimizer):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    torch.manual_seed(4)
    loader = DataLoader(TensorDataset(*friedman(2560, 40)), batch_size=128, shuffle=True)
    x_test, y_test = friedman(500, 41)
    model = build()
    criterion = nn.MSELoss(reduction="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(15):
        mean_loss = train_epoch(model, loader, criterion, optimizer)
        if epoch % 3 == 0:
            print(f"epoch {epoch} loss {mean_loss:.4f}")
    with torch.no_grad():
        rmse = (model(x_test) - y_test).pow(2).mean().sqrt()
    print(f"final rmse {rmse.item():.4f}")


if __name__ == "__main__":
    main()
