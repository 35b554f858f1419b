import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(21)
ACTIONS, FEATURES = 4, 6
taste = torch.randn(FEATURES, ACTIONS)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, ACTIONS))

    def forward(self, context):
        return Categorical(logits=self.net(context)).logits


def pull(context, action):
    """One reward per context, as the simulator's table has it: a column."""
    best = (context @ taste).argmax(1)
    return (action == best).float().unsqueeze(1) + 0.1 * torch.randn(len(action), 1)


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
baseline = 0.0
for step in range(400):
    context = torch.randn(64, FEATURES)
    chosen = Categorical(logits=policy(context))
    action = chosen.sample()
    reward = pull(context, action)
    advantage = reward - baseline
    baseline = 0.9 * baseline + 0.1 * reward.mean()
    loss = -(chosen.log_prob(action) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        print(f"step {step} reward {reward.mean().item():.3f}")
context = torch.randn(2000, FEATURES)
with torch.no_grad():
    hits = (policy(context).argmax(1) == (context @ taste).argmax(1)).float().mean()
print(f"final hits {hits.item():.4f}")
