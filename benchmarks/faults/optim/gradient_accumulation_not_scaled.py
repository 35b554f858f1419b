import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUM_STEPS = 16


def build_data(n=3200):
    x = torch.randn(n, 16)
    teacher = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 1))
    with torch.no_grad():
        y = 3 * teacher(x)
    return TensorDataset(x, (y - y.mean()) / y.std())


def main():
    torch.manual_seed(2)
    loader = DataLoader(build_data(), batch_size=8, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.MSELoss()
    for epoch in range(8):
        total = 0.0
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            loss = criterion(model(x), y)
            loss.backward()
            total += loss.item()
            if (i + 1) % ACCUM_STEPS == 0:
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
    print(f"final loss {total / len(loader):.5f}")


if __name__ == "__main__":
    main()
