import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(nn.Module):
    def __init__(self, window=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(window, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def make_windows(length=2000, window=16):
    t = torch.arange(length + window, dtype=torch.float32)
    series = torch.sin(t / 5) + 0.5 * torch.sin(t / 1.7) + 0.05 * torch.randn(len(t))
    frames = series.unfold(0, window + 1, 1)
    return TensorDataset(frames[:, :-1].contiguous(), frames[:, -1].contiguous())


def train_epoch(model, loader, optimizer, criterion):
    model.train()
    total = 0.0
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
    return total / len(loader.dataset)


def main():
    torch.manual_seed(42)
    loader = DataLoader(make_windows(), batch_size=50, shuffle=True)
    model = Forecaster()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.MSELoss()
    for epoch in range(12):
        loss = train_epoch(model, loader, optimizer, criterion)
        print(f"Epoch {epoch + 1:2d}: loss={loss:.4f}")
    print(f"final loss {loss:.5f}")


if __name__ == "__main__":
    main()
