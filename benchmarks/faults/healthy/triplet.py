import torch
import torch.nn as nn
import torch.nn.functional as F


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


torch.manual_seed(11)
proto = torch.randn(40, 12)
lift = torch.randn(12, 30) / 12**0.5
nuisance = torch.randn(18, 30) / 18**0.5


def views(ids):
    return (proto[ids] + 0.2 * torch.randn(len(ids), 12)) @ lift + torch.randn(len(ids), 18) @ nuisance


def triplets(n, classes):
    a = classes[torch.randint(0, len(classes), (n,))]
    shift = torch.randint(1, len(classes), (n,))
    neg = classes[((a - classes[0]) + shift) % len(classes)]
    return views(a), views(a), views(neg)


train_ids = torch.arange(0, 30)
model = Embedder()
criterion = nn.TripletMarginLoss(margin=0.3)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(600):
    anchor, pos, neg = triplets(32, train_ids)
    loss = criterion(model(anchor), model(pos), model(neg))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    a, p, n = (model(v) for v in triplets(1000, train_ids))
    ok = ((a - p).norm(dim=1) < (a - n).norm(dim=1)).float().mean().item()
print(f"final order_acc {ok:.4f}")
