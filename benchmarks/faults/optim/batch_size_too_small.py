import torch
import torch.nn as nn

BATCH_SIZE = 1
STEPS = 1500

torch.manual_seed(10)
true_w = torch.randn(20, 1)


def simulate(n, noise):
    x = torch.randn(n, 20)
    return x, torch.relu(x @ true_w) + noise * torch.randn(n, 1)


model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
smoothed = None
for step in range(STEPS):
    x, y = simulate(BATCH_SIZE, noise=6.0)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smoothed = loss.item() if smoothed is None else 0.98 * smoothed + 0.02 * loss.item()
    if step % 250 == 0:
        print(f"step {step} smoothed loss {smoothed:.3f}")

x, y = simulate(2000, noise=0.0)
with torch.no_grad():
    print(f"final mse {nn.functional.mse_loss(model(x), y).item():.4f}")
