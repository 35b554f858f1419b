import torch
import torch.nn as nn
import torch.nn.functional as F


def batches(x, y, size):
    for idx in torch.randperm(len(x)).split(size):
        yield x[idx], y[idx]


def train_once(name, opt_fn, x, y, epochs=10):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 6))
    opt = opt_fn(net.parameters())
    for epoch in range(epochs):
        seen = total = 0.0
        for xb, yb in batches(x, y, 80):
            loss = F.cross_entropy(net(xb), yb, reduction="sum")
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            seen += len(xb)
        if epoch % 3 == 0:
            print(f"{name} epoch {epoch} summed loss {loss.item():.2f} per sample {total / seen:.4f}")
    return net


torch.manual_seed(50)
centres = torch.randn(6, 12) * 1.4
y = torch.randint(0, 6, (2400,))
x = centres[y] + torch.randn(2400, 12)
xt, yt = x[2000:], y[2000:]
x, y = x[:2000], y[:2000]

scores = {}
for name, fn in {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3),
}.items():
    net = train_once(name, fn, x, y)
    with torch.no_grad():
        scores[name] = (net(xt).argmax(1) == yt).float().mean().item()
print(scores)
print(f"final acc {min(scores.values()):.4f}")
