import torch
from torch import nn
from torch.distributions import Categorical


class Agent(nn.Module):
    def __init__(self, n_obs=4, n_act=4):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(n_obs, 32), nn.Tanh(), nn.Linear(32, n_act))
        self.value = nn.Sequential(nn.Linear(n_obs, 32), nn.Tanh(), nn.Linear(32, 1))

    def act(self, s):
        dist = Categorical(logits=self.policy(s))
        a = dist.sample()
        return a, dist.log_prob(a), dist.entropy(), self.value(s).squeeze(-1)


class Drift:
    def __init__(self, n):
        self.pos, self.goal = torch.randn(n, 2), torch.randn(n, 2)
        self.moves = torch.tensor([[0.4, 0.0], [-0.4, 0.0], [0.0, 0.4], [0.0, -0.4]])

    def obs(self):
        return torch.cat([self.pos, self.goal], 1)

    def step(self, a):
        self.pos = self.pos + self.moves[a] + 0.05 * torch.randn_like(self.pos)
        return -(self.pos - self.goal).norm(dim=1)


def gae(rewards, values, last, gamma=0.9, lam=0.9):
    advs, adv, nxt = [], 0.0, last
    for r, v in zip(reversed(rewards), reversed(values)):
        adv = r + gamma * nxt - v + gamma * lam * adv
        advs.insert(0, adv)
        nxt = v.detach()
    return torch.stack(advs)


torch.manual_seed(14)
agent = Agent()
opt = torch.optim.Adam(agent.parameters(), lr=4e-3)
errors = []
for update in range(200):
    env = Drift(32)
    logps, ents, values, rewards = [], [], [], []
    for _ in range(6):
        a, logp, ent, v = agent.act(env.obs())
        rewards.append(env.step(a))
        for buf, item in ((logps, logp), (ents, ent), (values, v)):
            buf.append(item)
    with torch.no_grad():
        last = agent.value(env.obs()).squeeze(-1)
    adv = gae(rewards, values, last)
    target = adv.detach() + torch.stack(values).detach()
    policy_loss = -(torch.stack(logps) * adv).mean()
    value_loss = nn.functional.smooth_l1_loss(torch.stack(values), target)
    loss = policy_loss + 0.5 * value_loss - 0.01 * torch.stack(ents).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
    opt.step()
    errors.append((torch.stack(values).detach() - target).pow(2).mean().item())
    if update % 40 == 0:
        print(f"update {update} reward {torch.stack(rewards).mean().item():.3f} value error {errors[-1]:.3f}")
print(f"final value_error {sum(errors[-20:]) / 20:.4f}")
