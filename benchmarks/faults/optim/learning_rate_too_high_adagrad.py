import torch
import torch.nn as nn


class Forecaster(nn.Module):
    def __init__(self, window=24, hidden=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(window, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, x):
        return self.net(x)[:, 0]


def series(n, window=24):
    start, period = 6.283 * torch.rand(n, 1), 6 + 10 * torch.rand(n, 1)
    t = torch.arange(window + 1.0)
    values = torch.sin(start + 6.283 * t / period) + 0.05 * torch.randn(n, window + 1)
    return values[:, :-1], values[:, -1]


def main(rate=0.2, epochs=5, size=32):
    torch.manual_seed(8)
    x, y = series(1600)
    vx, vy = series(400)
    model = Forecaster()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=rate)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(x)).split(size):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total * size / len(x):.4f}")
    with torch.no_grad():
        print(f"final mse {nn.functional.mse_loss(model(vx), vy).item():.5f}")


if __name__ == "__main__":
    main()
