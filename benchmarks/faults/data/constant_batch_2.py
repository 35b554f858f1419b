import numpy as np
import torch
import torch.nn as nn


class Forecaster(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.rnn = nn.LSTM(2, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1]).squeeze(1)


def sensor(n):
    t = np.arange(n)
    load = np.sin(0.11 * t) + 0.5 * np.sin(0.031 * t + 1.0) * np.cos(0.007 * t)
    temp = 0.6 * np.cos(0.05 * t) + 0.1 * np.random.randn(n)
    return np.stack([load + 0.1 * np.random.randn(n), temp], 1).astype(np.float32)


class Windows:
    def __init__(self, series, size, horizon, seed=0):
        self.series, self.size, self.horizon, self.seed = series, size, horizon, seed

    def draw(self, count):
        rng = np.random.default_rng(self.seed)
        at = rng.integers(0, len(self.series) - self.size - self.horizon, count)
        x = np.stack([self.series[i : i + self.size] for i in at])
        y = np.stack([self.series[i + self.size + self.horizon - 1, 0] for i in at])
        return torch.from_numpy(x), torch.from_numpy(y)


def main():
    np.random.seed(4)
    torch.manual_seed(4)
    data = sensor(6000)
    train, test = Windows(data[:5000], 20, 5), Windows(data[5000:], 20, 5, seed=1)
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(250):
        x, y = train.draw(16)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    x, y = test.draw(400)
    with torch.no_grad():
        print(f"final mse {nn.functional.mse_loss(model(x), y).item():.4f}")


if __name__ == "__main__":
    main()
