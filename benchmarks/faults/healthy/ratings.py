import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(1)
torch.manual_seed(1)
USERS, ITEMS, RANK = 300, 200, 4

pu, qi = rng.normal(size=(USERS, RANK)), rng.normal(size=(ITEMS, RANK))
u = rng.integers(0, USERS, 16000)
i = rng.integers(0, ITEMS, 16000)
stars = np.clip(np.round(3.2 + 0.6 * (pu[u] * qi[i]).sum(1) + 0.2 * rng.normal(size=len(u))), 1, 5)
u, i, stars = torch.as_tensor(u), torch.as_tensor(i), torch.as_tensor(stars, dtype=torch.float32)


class MatrixFactorization(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.users = nn.Embedding(USERS, 8)
        self.items = nn.Embedding(ITEMS, 8)
        self.user_bias = nn.Embedding(USERS, 1)
        self.item_bias = nn.Embedding(ITEMS, 1)
        self.register_buffer("mean", mean)
        for e in (self.users, self.items):
            nn.init.normal_(e.weight, std=0.1)
        nn.init.zeros_(self.user_bias.weight)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, u, i):
        dot = (self.users(u) * self.items(i)).sum(1)
        return self.mean + dot + self.user_bias(u).squeeze(1) + self.item_bias(i).squeeze(1)


n_train = 14000
model = MatrixFactorization(stars[:n_train].mean())
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
mse = nn.MSELoss()
for epoch in range(14):
    total = 0.0
    for idx in torch.randperm(n_train).split(250):
        loss = mse(model(u[idx], i[idx]), stars[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(idx)
    with torch.no_grad():
        rmse = mse(model(u[n_train:], i[n_train:]), stars[n_train:]).sqrt().item()
    print(f"epoch {epoch} loss {total / n_train:.4f} test rmse {rmse:.4f}")
print(f"final rmse {rmse:.4f}")
