import torch
import torch.nn as nn

torch.manual_seed(83)


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 8))

    def forward(self, x):
        return self.net(x)


def contrastive(a, b, same, margin=1.5):
    dist = ((a - b) ** 2).sum(1).sqrt()
    pull = same * dist.pow(2)
    push = (1 - same) * torch.relu(margin - dist).pow(2)
    return (pull + push).mean()


people = torch.randn(15, 12)
gallery_id = torch.arange(600) % 15
gallery = people[gallery_id] + 0.6 * torch.randn(600, 12)


def pairs(n):
    i = torch.randint(0, 600, (n,))
    j = torch.randint(0, 600, (n,))
    mate = (i + 15 * torch.randint(0, 40, (n,))) % 600
    j = torch.where(torch.rand(n) < 0.5, mate, j)
    return gallery[i], gallery[j], (gallery_id[i] == gallery_id[j]).float()


model = Embed()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(300):
    a, b, same = pairs(32)
    loss = contrastive(model(a), model(b), same)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    codes = model(gallery)
    d = torch.cdist(codes, codes).fill_diagonal_(1e9)
    same_person = (gallery_id[d.argmin(1)] == gallery_id).float().mean().item()
print(f"final rank1 {same_person:.4f}")
