import torch
from torch import nn
from torch.distributions import Categorical


class ActorCritic(nn.Module):
    def __init__(self, n_obs=3, n_act=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, 48), nn.Tanh())
        self.pi, self.v = nn.Linear(48, n_act), nn.Linear(48, 1)

    def forward(self, s):
        h = self.body(s)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Carts:
    def __init__(self, n):
        self.v, self.gap, self.drift = torch.zeros(n), torch.randn(n), 0.05 * torch.randn(n)

    def obs(self):
        return torch.stack([self.v, self.gap, self.drift * 10], 1)

    def step(self, a):
        self.v = 0.6 * self.v + 0.25 * (a.float() - 1)
        self.gap = self.gap - self.v + self.drift
        return self.obs(), -self.gap.abs().clamp(max=2)


torch.manual_seed(5)
model = ActorCritic()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for update in range(110):
    env = Carts(16)
    s, logps, values, rewards, ents = env.obs(), [], [], [], []
    for _ in range(10):
        dist, value = model(s)
        a = dist.sample()
        s, r = env.step(a)
        for buf, item in ((logps, dist.log_prob(a)), (values, value), (rewards, r), (ents, dist.entropy())):
            buf.append(item)
    with torch.no_grad():
        ret = model(s)[1]
    targets = []
    for r in reversed(rewards):
        ret = r + 0.9 * ret
        targets.insert(0, ret)
    adv = torch.stack(targets) - torch.stack(values)
    actor = -(torch.stack(logps) * adv.detach()).mean()
    loss = actor + 0.5 * adv.pow(2).mean() - 0.01 * torch.stack(ents).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    if update % 20 == 0:
        print(f"update {update} actor {actor.item():+.4f} reward {torch.stack(rewards).mean().item():.3f}")
env = Carts(400)
with torch.no_grad():
    total = [env.step(model(env.obs())[0].probs.argmax(1))[1].mean().item() for _ in range(20)]
print(f"final reward {sum(total) / 20:.4f}")
