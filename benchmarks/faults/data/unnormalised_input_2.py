import torch
import torch.nn as nn


class PressureModel(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.rnn = nn.RNN(2, hidden, nonlinearity="tanh", batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.out(states[:, -1]).squeeze(-1)


def record(n, steps=15):
    """Pressure in pascal and temperature in kelvin; the target is the pressure trend in hPa."""
    trend = torch.randn(n, 1)
    t = torch.linspace(0, 1, steps)
    pressure = 101325 + 150 * trend * t + 40 * torch.randn(n, steps)
    kelvin = 288 + 6 * torch.randn(n, 1) + torch.randn(n, steps)
    return torch.stack([pressure, kelvin], -1), 1.5 * trend[:, 0]


torch.manual_seed(61)
series, target = record(1600)
split = 1300
model = PressureModel()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
plan = torch.optim.lr_scheduler.StepLR(opt, step_size=4, gamma=0.5)
for epoch in range(12):
    for rows in torch.randperm(split).split(50):
        loss = nn.functional.mse_loss(model(series[rows]), target[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    plan.step()
    if epoch % 2 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    test = nn.functional.mse_loss(model(series[split:]), target[split:])
print(f"final mse {test.item():.4f}")
