import torch
import torch.nn as nn
import torch.nn.functional as F


class Dynamics(nn.Module):
    """Next state = state + learned change."""

    def __init__(self, dim=6, width=64):
        super().__init__()
        self.act = nn.ReLU(inplace=True)
        self.fc1 = nn.Linear(2 * dim, width)
        self.fc2 = nn.Linear(width, dim)

    def forward(self, state):
        both = torch.cat([self.act(state), self.act(-state)], 1)
        delta = self.fc2(self.act(self.fc1(both)))
        return state + 0.1 * delta


def rollout_pairs(n):
    angle = torch.randn(n, 3)
    speed = torch.randn(n, 3)
    couple = angle.roll(1, 1) - angle
    nxt_speed = speed + 0.1 * (couple - torch.sin(angle) - 0.2 * speed)
    return torch.cat([angle, speed], 1), torch.cat([angle + 0.1 * speed, nxt_speed], 1)


torch.manual_seed(16)
state, following = rollout_pairs(3000)
model = Dynamics()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(10):
    for rows in torch.randperm(2500).split(50):
        pred = model(state[rows])
        loss = F.mse_loss(pred, following[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.6f}")
with torch.no_grad():
    test = F.mse_loss(model(state[2500:]), following[2500:])
print(f"final one_step_mse {test.item():.6f}")
