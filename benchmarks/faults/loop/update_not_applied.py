import torch
from torch import nn
from torch.optim import Optimizer


class SignMomentum(Optimizer):
    """Sign of a running mean of the gradient, with decoupled decay."""

    def __init__(self, params, lr=1e-3, beta=0.9, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                flat, grad = p.reshape(-1), p.grad.reshape(-1)
                avg = self.state[p].setdefault("avg", torch.zeros_like(grad))
                avg.lerp_(grad, 1 - group["beta"])
                flat.mul_(1 - group["lr"] * group["weight_decay"])
                flat.add_(avg.sign(), alpha=-group["lr"])


class Net(nn.Module):
    def __init__(self, dim=12, hidden=12, rank=24):
        super().__init__()
        self.inp = nn.Linear(dim, hidden)
        self.mix = nn.Linear(hidden, rank)
        self.out = nn.Linear(rank, 3)
        kernel = torch.randn(dim, hidden) / dim**0.5
        self.inp.weight = nn.Parameter(kernel.t())

    def forward(self, x):
        return self.out(torch.relu(self.mix(torch.relu(self.inp(x)))))


def batch(n):
    x = torch.randn(n, 12)
    return x, torch.stack([x[:, 0] * x[:, 1], x[:, 2] * x[:, 3], x[:, 4] * x[:, 5]], 1).argmax(1)


torch.manual_seed(35)
net = Net()
opt = SignMomentum(net.parameters(), lr=2e-3, weight_decay=0.01)
for step in range(1200):
    x, y = batch(64)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 200 == 0:
        print(f"step {step} loss {loss.item():.4f}")
x, y = batch(2000)
with torch.no_grad():
    print(f"final acc {(net(x).argmax(1) == y).float().mean().item():.4f}")
