import numpy as np
import torch
import torch.nn as nn


def weather(days):
    """Station log: temperature, humidity, pressure, wind."""
    rng = np.random.RandomState(69)
    t = np.arange(days)
    temp = 10 + 10 * np.sin(2 * np.pi * t / 365) + 2 * rng.randn(days)
    hum = 60 - temp + 5 * rng.randn(days)
    press = 1013 + 8 * rng.randn(days)
    wind = np.sqrt(rng.gamma(2.0, 4.0, days))
    log = np.column_stack([temp, hum, press, wind])
    rain = 0.05 * (hum - 50) - 0.1 * (press - 1013) + 0.3 * wind
    log[1500 + rng.choice(400, 6, replace=False), 1] = np.nan
    return log.astype(np.float32), rain.astype(np.float32)


log, rain = weather(2500)
log = (log - np.nanmean(log, 0)) / np.nanstd(log, 0)
x, y = torch.tensor(log), torch.tensor((rain - rain.mean()) / rain.std())
torch.manual_seed(69)
net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(10):
    total = 0.0
    for rows in torch.randperm(2000).split(40):
        loss = nn.functional.mse_loss(net(x[rows]).flatten(), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 50:.4f}")
with torch.no_grad():
    print(f"final mse {nn.functional.mse_loss(net(x[2000:]).flatten(), y[2000:]).item():.4f}")
