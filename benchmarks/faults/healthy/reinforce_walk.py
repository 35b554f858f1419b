import torch
import torch.nn as nn
from torch.distributions import Categorical

SIZE, HORIZON, GAMMA = 7, 14, 0.97


def one_hot(pos):
    return nn.functional.one_hot(pos, SIZE).float()


def rollout(policy, n):
    """n walkers start in the middle of a corridor; the right end pays 1, the left end -1, a move costs 0.02."""
    pos = torch.full((n,), SIZE // 2)
    alive = torch.ones(n)
    logps, rewards, masks = [], [], []
    for _ in range(HORIZON):
        dist = Categorical(logits=policy(one_hot(pos)))
        a = dist.sample()
        slip = torch.rand(n) < 0.1
        move = torch.where(slip, 1 - a, a) * 2 - 1
        pos = (pos + move * alive.long()).clamp(0, SIZE - 1)
        r = -0.02 * alive + alive * ((pos == SIZE - 1).float() - (pos == 0).float())
        logps.append(dist.log_prob(a))
        rewards.append(r)
        masks.append(alive)
        alive = alive * ((pos != 0) & (pos != SIZE - 1)).float()
    return torch.stack(logps), torch.stack(rewards), torch.stack(masks)


def returns_to_go(rewards):
    out, g = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        g = rewards[t] + GAMMA * g
        out[t] = g
    return out


torch.manual_seed(21)
policy = nn.Sequential(nn.Linear(SIZE, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

for episode in range(120):
    logp, rew, mask = rollout(policy, 16)
    ret = returns_to_go(rew)
    ret = (ret - ret.mean()) / (ret.std() + 1e-6)
    loss = -(logp * ret * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 20 == 0:
        print(f"episode {episode} loss {loss.item():+.4f} return {rew.sum(0).mean().item():.3f}")

with torch.no_grad():
    _, rew, _ = rollout(policy, 500)
print(f"final return {rew.sum(0).mean().item():.4f}")
