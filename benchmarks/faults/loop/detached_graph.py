import torch
import torch.nn as nn


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, h):
        weights = torch.softmax(self.score(h).squeeze(-1), dim=1)
        return (weights.unsqueeze(-1) * h).sum(dim=1)


class SetClassifier(nn.Module):
    def __init__(self, dim=6, hidden=32):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 8))
        self.pool = AttentionPool(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        h = self.embed(x)
        pooled = self.pool(h.data)
        return self.out(pooled)


def sets(n, size=7):
    x = torch.randn(n, size, 6)
    best = x[..., 0].argmax(dim=1)
    chosen = x[torch.arange(n), best]
    return x, chosen[:, 1:4].argmax(dim=1)


torch.manual_seed(18)
model = SetClassifier()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
loss_fn = nn.CrossEntropyLoss()
for it in range(500):
    x, y = sets(64)
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    if it % 100 == 0:
        print(f"iter {it} loss {loss.item():.4f}")

x, y = sets(1000)
with torch.no_grad():
    print(f"final acc {(model(x).argmax(1) == y).float().mean().item():.4f}")
