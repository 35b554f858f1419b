import torch
import torch.nn as nn

torch.manual_seed(31)
STEPS = 40
betas = torch.linspace(1e-3, 0.2, STEPS)
alphas = 1 - betas
abar = alphas.cumprod(0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(STEPS, 32)
        self.inp = nn.Linear(1, 32)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x, t):
        return self.body(self.inp(x) + self.time(t))


def data(n):
    side = torch.where(torch.rand(n, 1) < 0.3, -1.2, 0.8)
    return side + 0.15 * torch.randn(n, 1)


@torch.no_grad()
def sample(model, n):
    x = torch.randn(n, 1)
    for t in reversed(range(STEPS)):
        eps = model(x, torch.full((n,), t))
        x = (x - betas[t] / (1 - abar[t]).sqrt() * eps) / alphas[t].sqrt()
        if t:
            x = x + betas[t].sqrt() * torch.randn_like(x)
    return x


model = Denoiser()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1000)
for it in range(1000):
    x0 = data(128)
    t = torch.randint(0, STEPS, (128,))
    noise = torch.randn_like(x0)
    a = abar[t].unsqueeze(1)
    loss = (model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t) - noise).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if it % 150 == 0:
        print(f"it {it} loss {loss.item():.4f}")

gen, ref = sample(model, 4000), data(4000)
w1 = (gen.flatten().sort()[0] - ref.flatten().sort()[0]).abs().mean().item()
print(f"final w1 {w1:.4f}")
