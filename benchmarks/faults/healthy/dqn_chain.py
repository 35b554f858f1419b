import random
from collections import deque

import torch
import torch.nn as nn

random.seed(0)
torch.manual_seed(0)
N, GAMMA = 8, 0.9


class Chain:
    def reset(self):
        self.s, self.t = 1, 0
        return self.s

    def step(self, a):
        self.t += 1
        self.s = min(self.s + 1, N - 1) if a == 1 else max(self.s - 1, 0)
        if self.s == N - 1:
            return self.s, 1.0, True
        return self.s, (0.05 if self.s == 0 else 0.0), self.t >= 24


def make_net():
    return nn.Sequential(nn.Embedding(N, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))


q, target = make_net(), make_net()
target.load_state_dict(q.state_dict())
target.requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=2e-3)
buffer, env = deque(maxlen=2000), Chain()
s = env.reset()
for step in range(1500):
    if random.random() < max(0.1, 1.0 - step / 800):
        a = random.randrange(2)
    else:
        with torch.no_grad():
            a = int(q(torch.tensor([s])).argmax())
    s2, r, done = env.step(a)
    buffer.append((s, a, r, s2, float(done and s2 == N - 1)))
    s = env.reset() if done else s2
    if len(buffer) < 100 or step % 2:
        continue
    bs, ba, br, bs2, bd = map(torch.tensor, zip(*random.sample(buffer, 64), strict=True))
    qa = q(bs).gather(1, ba[:, None]).squeeze(1)
    y = br + GAMMA * (1 - bd) * target(bs2).max(1).values
    loss = nn.functional.smooth_l1_loss(qa, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        target.load_state_dict(q.state_dict())
        print(f"step {step} loss {loss.item():.5f}")

true_v = torch.tensor([GAMMA ** (N - 2 - i) for i in range(1, N - 1)])
with torch.no_grad():
    err = (q(torch.arange(1, N - 1))[:, 1] - true_v).abs().mean()
print(f"final q_error {err.item():.4f}")
