import torch
import torch.nn as nn
from torch.distributions import Categorical


class Router(nn.Module):
    """Picks one of several routes for each parcel; the cost is known afterwards."""

    def __init__(self, d=5, routes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 32), nn.Tanh())
        self.pick = nn.Linear(32, routes)
        self.expect = nn.Linear(32, 1)
        self.eta = nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.pick(h)), self.expect(h).squeeze(-1), self.eta(h)


torch.manual_seed(17)
prices = torch.randn(5, 4)
net = Router()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
history = []
for it in range(300):
    x = torch.randn(128, 5)
    dist, expected, _ = net(x)
    route = dist.sample()
    cost = (x @ prices).gather(1, route[:, None]).squeeze(1) + 0.1 * torch.randn(128)
    advantage = cost - expected.detach()
    loss = (dist.log_prob(route) * advantage).mean() + 0.5 * (expected - cost).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(cost.mean().item())
    if it % 50 == 0:
        print(f"it {it} cost {history[-1]:.3f} loss {loss.item():+.3f}")
print(f"final cost {sum(history[-30:]) / 30:.4f}")
