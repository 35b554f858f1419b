import numpy as np
import torch
import torch.nn as nn

np.random.seed(6)
torch.manual_seed(6)
n = 1500
temp = np.random.uniform(-10, 35, n)
wind = np.random.uniform(0, 20, n)
sun = np.random.uniform(0, 1, n)
demand = 0.004 * (temp - 18) ** 2 + 0.05 * wind * (1 - sun) - 1.2 * sun + 0.1 * np.random.randn(n)

features = np.stack([temp / 20, wind / 10, sun], axis=1).astype(np.float32)
target = ((demand - demand.mean()) / demand.std()).astype(np.float32)
X, y = torch.from_numpy(features), torch.from_numpy(target)
X_tr, X_te, y_tr, y_te = X[:1200], X[1200:], y[:1200], y[1200:]

net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-5)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=25)

for epoch in range(25):
    perm = torch.randperm(1200)
    for i in range(0, 1200, 48):
        sel = perm[i : i + 48]
        pred = net(X_tr[sel])
        loss = torch.mean((pred - y_tr[sel]) ** 2)
        opt.zero_grad()
        loss.backward()
        opt.step()
    sched.step()
    if epoch % 5 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")

with torch.no_grad():
    residual = net(X_te).flatten() - y_te
r2 = 1 - residual.pow(2).mean() / y_te.var()
print(f"final r2 {r2.item():.4f}")
