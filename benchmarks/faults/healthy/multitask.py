import torch
import torch.nn as nn


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.position = nn.Linear(64, 2)
        self.speed = nn.Linear(64, 1)
        self.kind = nn.Linear(64, 3)
        # log-variance of each task (homoscedastic uncertainty weighting)
        self.s = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = self.shared(x)
        return self.position(h), self.speed(h).squeeze(-1), self.kind(h)


torch.manual_seed(19)
A, B, C = torch.randn(8, 2) / 3, torch.randn(8) / 3, torch.randn(8, 3)


def observe(n):
    x = torch.randn(n, 8)
    pos = torch.sin(x @ A) + 0.1 * torch.randn(n, 2)
    speed = torch.tanh(x @ B) * 0.5 + 0.05 * torch.randn(n)
    return x, pos, speed, (x @ C + 0.5 * torch.randn(n, 3)).argmax(1)


net = MultiTask()
weights = [p for n, p in net.named_parameters() if n != "s"]
opt = torch.optim.Adam([{"params": weights}, {"params": [net.s], "lr": 2e-2}], lr=3e-3)
history = []
for step in range(900):
    x, pos, speed, kind = observe(64)
    p, v, k = net(x)
    losses = torch.stack(
        [
            nn.functional.mse_loss(p, pos),
            nn.functional.mse_loss(v, speed),
            nn.functional.cross_entropy(k, kind),
        ]
    )
    total = (losses * torch.exp(-net.s) + 0.5 * net.s).sum()
    opt.zero_grad()
    total.backward()
    opt.step()
    history.append(total.item())
    if step % 150 == 0:
        print(f"step {step} total {total.item():+.4f} parts {[round(v, 4) for v in losses.tolist()]}")
x, pos, speed, kind = observe(2000)
with torch.no_grad():
    p, v, k = net(x)
    err = nn.functional.mse_loss(p, pos) + nn.functional.mse_loss(v, speed) + (k.argmax(1) != kind).float().mean()
print(f"final err {err.item():.4f}")
