import torch
import torch.nn as nn
import torch.nn.functional as F


class ClickModel(nn.Module):
    def __init__(self, ads=40, users=60, dim=8):
        super().__init__()
        self.ad = nn.Embedding(ads, dim)
        self.user = nn.Embedding(users, dim)
        self.mix = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ad, user):
        return self.mix(torch.cat([self.ad(ad), self.user(user)], 1))[:, 0]


torch.manual_seed(30)
appeal, taste = torch.randn(40), torch.randn(60)
ad, user = torch.randint(0, 40, (20000,)), torch.randint(0, 60, (20000,))
click = torch.bernoulli(torch.sigmoid(1.2 * appeal[ad] + 0.8 * taste[user]))
model = ClickModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step, rows in enumerate(torch.randperm(18000).split(128)):
    loss = F.binary_cross_entropy_with_logits(model(ad[rows], user[rows]), click[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"final loss {F.binary_cross_entropy_with_logits(model(ad[18000:], user[18000:]), click[18000:]).item():.4f}")
