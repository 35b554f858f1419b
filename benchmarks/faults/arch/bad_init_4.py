import math

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.rnn = nn.LSTM(2, hidden, batch_first=True)
        self.read = nn.Linear(hidden, 2)
        for weight in [*self.rnn.parameters(), *self.read.parameters()]:
            weight.data.fill_(0.1)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.read(states[:, -1])


def windows(n, length=16):
    phase, speed = torch.rand(n, 1) * 6.28, 0.2 + 0.4 * torch.rand(n, 1)
    angle = phase + speed * torch.arange(length + 1)
    both = torch.stack([angle.sin(), (2 * angle + math.pi / 3).cos()], -1)
    return both[:, :-1], both[:, -1]


torch.manual_seed(4)
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.MSELoss()
for step in range(350):
    x, y = windows(48)
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 70 == 0:
        print(f"step {step} mse {loss.item():.4f}")
x, y = windows(1000)
with torch.no_grad():
    print(f"final mse {criterion(model(x), y).item():.4f}")
