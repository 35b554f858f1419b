import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def simulate(n):
    """Pendulum: angle and speed now, angular acceleration to be learned."""
    angle = 6 * torch.rand(n) - 3
    speed = 4 * torch.rand(n) - 2
    accel = -2.0 * torch.sin(angle) - 0.4 * speed
    return torch.stack([angle.sin(), angle.cos(), speed], 1), accel[:, None]


def make_model(hidden=48):
    return nn.Sequential(
        nn.Linear(3, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 1),
        nn.ReLU(),
    )


torch.manual_seed(51)
loader = DataLoader(TensorDataset(*simulate(1600)), batch_size=40, shuffle=True)
x_val, y_val = simulate(400)
model = make_model()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loss_fn = nn.SmoothL1Loss()
for epoch in range(12):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val = (model(x_val) - y_val).pow(2).mean().item()
    print(f"epoch {epoch} loss {loss.item():.4f} val {val:.4f}")
print(f"final val_mse {val:.5f}")
