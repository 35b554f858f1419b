import torch
import torch.nn as nn
import torch.nn.functional as F


class Denoiser(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.inp = nn.Conv1d(1, channels, 5, padding=2)
        self.mid = nn.Conv1d(channels, channels, 5, padding=2)
        self.out = nn.Conv1d(channels, 1, 5, padding=2)

    def forward(self, x):
        h = F.relu(self.inp(x))
        return self.out(F.relu(self.mid(h)) + h)


def waves(n, length=48):
    t = torch.linspace(0, 1, length)
    freq = 1 + 4 * torch.rand(n, 1, 1)
    clean = torch.sin(6.283 * (freq * t + torch.rand(n, 1, 1)))
    return clean + 0.3 * torch.randn_like(clean), clean


def fit(model, steps, lr, limit):
    groups = [{"params": [p for n, p in model.named_parameters() if n.endswith("bias")], "lr": 2 * lr},
              {"params": [p for n, p in model.named_parameters() if n.endswith("weight")]}]  # fmt: skip
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True)
    for step in range(steps):
        noisy, clean = waves(32)
        loss = F.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            nn.utils.clip_grad_value_(group["params"], clip_value=limit)
        optimizer.step()
        if step % 60 == 0:
            print(f"step {step} loss {loss.item():.4f}")


torch.manual_seed(21)
net = Denoiser()
fit(net, steps=300, lr=0.05, limit=2e-5)
noisy, clean = waves(400)
with torch.no_grad():
    print(f"final mse {F.mse_loss(net(noisy), clean).item():.4f}")
