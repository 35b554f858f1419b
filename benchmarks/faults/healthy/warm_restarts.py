import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)


def spirals(n, noise=0.1):
    y = torch.randint(0, 3, (n,))
    r = torch.rand(n) * 0.9 + 0.1
    ang = 4 * r + y * 2 * math.pi / 3
    pts = torch.stack([r * torch.cos(ang), r * torch.sin(ang)], 1)
    return 2 * pts + noise * torch.randn(n, 2), y


x_train, y_train = spirals(1500)
x_test, y_test = spirals(600)
net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.95, nesterov=True)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=5, T_mult=2, eta_min=1e-4)
bs = 50
iters = len(x_train) // bs
for epoch in range(35):
    perm = torch.randperm(len(x_train))
    for i in range(iters):
        idx = perm[i * bs : (i + 1) * bs]
        opt.zero_grad()
        loss = F.cross_entropy(net(x_train[idx]), y_train[idx])
        loss.backward()
        opt.step()
        sched.step(epoch + (i + 1) / iters)
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1:3d} lr {opt.param_groups[0]['lr']:.5f} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"final acc {(net(x_test).argmax(1) == y_test).float().mean().item():.4f}")
