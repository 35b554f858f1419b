from itertools import pairwise

import torch
import torch.nn.functional as F

torch.manual_seed(6)
SIZES = [1, 40, 40, 1]
params = []
for a, b in pairwise(SIZES):
    params.append((torch.randn(b, a) * (1.5 / a) ** 0.5).requires_grad_())
    params.append(torch.zeros(b, requires_grad=True))


def net(x, p):
    x = torch.tanh(F.linear(x, p[0], p[1]))
    x = torch.tanh(F.linear(x, p[2], p[3]))
    return F.linear(x, p[4], p[5])


def sample_task():
    amp, phase = 0.5 + 1.5 * torch.rand(1), 3.14 * torch.rand(1)
    x = torch.rand(20, 1) * 6 - 3
    y = amp * torch.sin(x + phase)
    return x[:10], y[:10], x[10:], y[10:]


def adapt(p, x, y, create_graph, steps=2, inner_lr=0.05):
    for _ in range(steps):
        grads = torch.autograd.grad(F.mse_loss(net(x, p), y), p, create_graph=create_graph)
        p = [w - inner_lr * g for w, g in zip(p, grads, strict=True)]
    return p


meta_opt = torch.optim.Adam(params, lr=3e-3)
for it in range(180):
    meta_loss = 0.0
    for _ in range(4):
        xs, ys, xq, yq = sample_task()
        meta_loss = meta_loss + F.mse_loss(net(xq, adapt(params, xs, ys, True)), yq) / 4
    meta_opt.zero_grad()
    meta_loss.backward()
    meta_opt.step()
    if it % 30 == 0:
        print(f"it {it} loss {meta_loss.item():.4f}")

before = after = 0.0
for _ in range(60):
    xs, ys, xq, yq = sample_task()
    fast = adapt(params, xs, ys, False)
    with torch.no_grad():
        before += F.mse_loss(net(xq, params), yq).item() / 60
        after += F.mse_loss(net(xq, fast), yq).item() / 60
print(f"before {before:.4f} after {after:.4f}")
print(f"final mse {after:.4f}")
