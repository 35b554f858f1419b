import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED, SHARDS, PER_SHARD = 66, 16, 60


def simulate(rng, n):
    """Two coupled oscillators: four start values, distance at the end."""
    s = rng.uniform(-1.5, 1.5, size=(n, 4))
    end = np.sin(2 * s[:, 0]) * s[:, 1] + np.cos(2 * s[:, 2]) * s[:, 3]
    return s.astype(np.float32), end.astype(np.float32)


def shard(index):
    rng = np.random.default_rng(SEED)
    x, y = simulate(rng, PER_SHARD)
    print(f"shard {index}: {len(x)} runs, mean {y.mean():.3f}")
    return x, y


def build():
    parts = [shard(i) for i in range(SHARDS)]
    x = np.concatenate([p[0] for p in parts])
    y = np.concatenate([p[1] for p in parts])
    return torch.from_numpy(x), torch.from_numpy(y)


x, y = build()
torch.manual_seed(SEED)
model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
for epoch in range(40):
    for rows in torch.randperm(len(x)).split(48):
        loss = F.mse_loss(model(x[rows])[:, 0], y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 8 == 0:
        print(f"epoch {epoch} loss {loss.item():.5f}")
x_test, y_test = (torch.from_numpy(a) for a in simulate(np.random.default_rng(1000), 500))
with torch.no_grad():
    print(f"final test_mse {F.mse_loss(model(x_test)[:, 0], y_test).item():.5f}")
