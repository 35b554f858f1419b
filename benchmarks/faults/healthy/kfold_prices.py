import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(7)
n = 600
rooms = rng.integers(1, 7, n)
area = rooms * rng.normal(22, 3, n)
age = rng.uniform(0, 60, n)
dist = rng.gamma(2.0, 3.0, n)
# price in units of 100k
price = 0.6 + 0.02 * area + 0.25 * rooms - 0.012 * age - 0.08 * dist + 0.15 * rng.normal(size=n)
features = np.stack([rooms, area, age, dist], 1)
y = torch.tensor(price, dtype=torch.float32).unsqueeze(1)


def build_model():
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))


def fit_fold(xtr, ytr):
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        for b in torch.randperm(len(xtr)).split(60):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(xtr[b]), ytr[b])
            loss.backward()
            optimizer.step()
    return model, loss.item()


torch.manual_seed(0)
order = rng.permutation(n)
folds = np.array_split(order, 5)
scores = []
for k, test_idx in enumerate(folds):
    train_idx = np.concatenate([f for j, f in enumerate(folds) if j != k])
    mean, std = features[train_idx].mean(0), features[train_idx].std(0)
    x = torch.tensor((features - mean) / std, dtype=torch.float32)
    model, train_loss = fit_fold(x[train_idx], y[train_idx])
    with torch.no_grad():
        base = nn.functional.l1_loss(build_model()(x[test_idx]), y[test_idx]).item()
        mae = nn.functional.l1_loss(model(x[test_idx]), y[test_idx]).item()
    scores.append(mae)
    print(f"fold {k} train loss {train_loss:.4f} mae {mae:.4f} (random init {base:.3f})")
print(f"final mae {np.mean(scores):.4f}")
