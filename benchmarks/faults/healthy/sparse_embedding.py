import torch
import torch.nn as nn

N_ITEMS = 30000


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(N_ITEMS, 12, mode="mean", sparse=True)
        self.mlp = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        return self.mlp(self.items(ids)).squeeze(1)


torch.manual_seed(6)
popular = torch.randperm(N_ITEMS)[:400]
taste = torch.randn(400)


def sessions(n):
    pick = torch.randint(0, 400, (n, 8))
    return popular[pick], (taste[pick].sum(1) > 0).float()


model = ClickModel()
nn.init.normal_(model.items.weight, std=0.1)
opt_sparse = torch.optim.SparseAdam(list(model.items.parameters()), lr=2e-2)
opt_dense = torch.optim.Adam(model.mlp.parameters(), lr=5e-3)
criterion = nn.BCEWithLogitsLoss()
for step in range(300):
    ids, click = sessions(96)
    loss = criterion(model(ids), click)
    opt_sparse.zero_grad()
    opt_dense.zero_grad()
    loss.backward()
    opt_sparse.step()
    opt_dense.step()
    if step % 60 == 0:
        print(f"step {step} loss {loss.item():.4f}")
ids, click = sessions(2000)
with torch.no_grad():
    print(f"final acc {((model(ids) > 0).float() == click).float().mean().item():.4f}")
