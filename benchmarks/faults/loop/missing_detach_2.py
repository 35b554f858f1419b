import copy

import torch
from torch import nn

GAMMA, STATES = 0.9, 12
torch.manual_seed(24)
left_prob = 0.2 + 0.6 * torch.rand(STATES)


def mlp():
    return nn.Sequential(nn.Linear(STATES, 48), nn.Tanh(), nn.Linear(48, 1))


class Agent(nn.Module):
    """Value of every place on a ring, learned by temporal differences."""

    def __init__(self):
        super().__init__()
        self.value = mlp()
        self.target = copy.deepcopy(self.value)

    def sync(self):
        self.target.load_state_dict(self.value.state_dict())


def transitions(n):
    s = torch.randint(0, STATES, (n,))
    jump = torch.where(torch.rand(n) < left_prob[s], -1, 1) * torch.randint(1, 4, (n,))
    s2 = (s + jump) % STATES
    return s, (s2 == 0).float(), s2


def true_values():
    p = torch.zeros(STATES, STATES)
    for s in range(STATES):
        for k in (1, 2, 3):
            p[s, (s - k) % STATES] += left_prob[s] / 3
            p[s, (s + k) % STATES] += (1 - left_prob[s]) / 3
    return torch.linalg.solve(torch.eye(STATES) - GAMMA * p, p[:, 0])


onehot = torch.eye(STATES)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
for step in range(1200):
    s, r, s2 = transitions(64)
    v = agent.value(onehot[s]).squeeze(1)
    goal = r + GAMMA * agent.target(onehot[s2]).squeeze(1)
    loss = nn.functional.mse_loss(v, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        agent.sync()
    if step % 200 == 0:
        print(f"step {step} td loss {loss.item():.5f}")

with torch.no_grad():
    error = (agent.value(onehot).squeeze(1) - true_values()).abs().mean().item()
print(f"final value_error {error:.5f}")
