import copy

import torch
import torch.nn as nn

torch.manual_seed(8)
W = torch.randn(10, 6) / 3
V = torch.randn(10, 6) / 3


def task(n, mix):
    x = torch.randn(n, 10)
    return x, torch.tanh(x @ (W + mix * V)).sum(1, keepdim=True)


def run(net, params, n_steps, mix, lr):
    opt = torch.optim.Adam(params, lr=lr)
    for _ in range(n_steps):
        x, y = task(64, mix)
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"  loss {loss.item():.4f} after {n_steps} steps")
    return opt


encoder = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
old = nn.Sequential(encoder, nn.Linear(64, 1))
print("base task")
run(old, old.parameters(), 400, 0.0, 3e-3)
weights = copy.deepcopy(encoder.state_dict())

print("new task, head only")
encoder2 = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
encoder2.load_state_dict(weights)
for p in encoder2.parameters():
    p.requires_grad = False
new = nn.Sequential(encoder2, nn.Linear(64, 1))
opt = run(new, new[1].parameters(), 150, 0.4, 1e-2)

print("new task, everything")
for p in encoder2.parameters():
    p.requires_grad = True
opt.add_param_group({"params": encoder2.parameters(), "lr": 2e-3})
opt.param_groups[0]["lr"] = 3e-3
for i in range(500):
    x, y = task(64, 0.4)
    loss = nn.functional.mse_loss(new(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 100 == 0:
        print(f"  step {i} loss {loss.item():.4f}")
x, y = task(1000, 0.4)
with torch.no_grad():
    print(f"final mse {nn.functional.mse_loss(new(x), y).item():.4f}")
