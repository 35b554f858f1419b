import torch
from torch import nn

DT = 0.1


def van_der_pol(state, mu=2.0):
    x, v = state[:, 0], state[:, 1]
    return torch.stack([v, mu * (1 - x**2) * v - x], dim=1)


def rollout(field, state, steps):
    path = []
    for _ in range(steps):
        state = state + DT * field(state)
        path.append(state)
    return torch.stack(path, dim=1)


torch.manual_seed(12)
model = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
for step in range(400):
    start = torch.rand(32, 2) * 4 - 2
    with torch.no_grad():
        target = rollout(van_der_pol, start, 25)
    loss = nn.functional.mse_loss(rollout(model, start, 25), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if step % 50 == 0:
        print(f"step {step} trajectory loss {loss.item():.4f}")

start = torch.rand(256, 2) * 4 - 2
with torch.no_grad():
    error = nn.functional.mse_loss(rollout(model, start, 25), rollout(van_der_pol, start, 25)).item()
print(f"final mse {error:.4f}")
