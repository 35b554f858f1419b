import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def customers(n, rng, month_end=True):
    """Monthly snapshot of subscribers."""
    tenure = rng.exponential(1.0, n)
    calls = rng.poisson(1.5, n)
    usage = rng.normal(0, 1, (n, 6))
    risk = 1.2 * calls - 1.5 * tenure + 1.5 * usage[:, 0] * usage[:, 1] - usage[:, 2] - 0.5
    left = (risk + rng.logistic(0, 0.5, n) > 0).astype(np.int64)
    refund = left * rng.uniform(0.8, 1.2, n) if month_end else np.zeros(n)
    table = np.column_stack([tenure, calls, usage, refund]).astype(np.float32)
    return torch.from_numpy(table), torch.from_numpy(left)


rng = np.random.default_rng(19)
torch.manual_seed(19)
x, y = customers(3000, rng)
mean, std = x.mean(0), x.std(0)
x = (x - mean) / std
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(9, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(10):
    seen, correct = 0, 0
    for xb, yb in loader:
        logits = model(xb)
        loss = nn.functional.cross_entropy(logits, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += len(yb)
        correct += (logits.argmax(1) == yb).sum().item()
    print(f"epoch {epoch} loss {loss.item():.4f} train acc {correct / seen:.3f}")

x_now, y_now = customers(1000, rng, month_end=False)
with torch.no_grad():
    acc = (model((x_now - mean) / std).argmax(1) == y_now).float().mean()
print(f"final acc_this_month {acc.item():.4f}")
