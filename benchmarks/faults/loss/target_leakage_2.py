import math

import torch
from torch import nn
from torch.nn import functional as F

WINDOW = 16


def load_series(length):
    t = torch.arange(length)
    daily = torch.sin(2 * math.pi * t / 12)
    weekly = 0.6 * torch.sin(2 * math.pi * t / 31 + 1)
    return daily + weekly + 0.03 * torch.randn(length)


def windows(series):
    count = len(series) - WINDOW
    x = torch.stack([series[i + 1 : i + 1 + WINDOW] for i in range(count)])
    y = torch.stack([series[i + WINDOW] for i in range(count)])
    return x, y


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 24, batch_first=True)
        self.readout = nn.Linear(24, 1)

    def forward(self, x):
        _, h = self.rnn(x.unsqueeze(-1))
        return self.readout(h[-1]).squeeze(-1)


torch.manual_seed(1)
series = load_series(1400)
x, y = windows(series[:1200])
model = Forecaster()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(10):
    for rows in torch.randperm(len(x)).split(48):
        loss = F.mse_loss(model(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")

history = series[1200 - WINDOW : 1200].tolist()
with torch.no_grad():
    for _ in range(24):
        history.append(model(torch.tensor(history[-WINDOW:])[None]).item())
error = torch.tensor(history[WINDOW:]) - series[1200:1224]
print(f"final forecast_mse {error.pow(2).mean().item():.5f}")
