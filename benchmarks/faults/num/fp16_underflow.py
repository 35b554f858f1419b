import torch
import torch.nn as nn

DT = 5e-7  # s, sampling interval of the scope


class Pulse(nn.Module):
    """Response of a circuit (64 samples) to eight component values."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(8, 64)
        self.mid = nn.Linear(64, 64)
        self.dec = nn.Linear(64, 64)

    def forward(self, x):
        h = torch.relu(self.enc(x))
        return self.dec(torch.relu(self.mid(h)))


def integral_squared_error(pred, target):
    return ((pred.float() - target) ** 2).sum(1).mul(DT).mean()


torch.manual_seed(77)
parts = torch.randn(2000, 8)
response = torch.tanh(parts) @ torch.randn(8, 64) / 2

model = Pulse()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(10):
    for rows in torch.randperm(1600).split(64):
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(parts[rows])
        loss = integral_squared_error(pred, response[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4e}")
with torch.no_grad():
    error = (model(parts[1600:]) - response[1600:]).pow(2).mean() / response[1600:].pow(2).mean()
print(f"final relative_error {error.item():.4f}")
