import torch
import torch.nn as nn
import torch.nn.functional as F


class VectorQuantizer(nn.Module):
    def __init__(self, k, d):
        super().__init__()
        self.codebook = nn.Embedding(k, d)
        nn.init.normal_(self.codebook.weight, std=0.5)

    def forward(self, z):
        idx = torch.cdist(z.detach(), self.codebook.weight.detach()).argmin(1)
        q = self.codebook(idx)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss, idx


class VQAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4))
        self.vq = VectorQuantizer(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 16))

    def forward(self, x):
        q, vq_loss, idx = self.vq(self.encoder(x))
        return self.decoder(q), vq_loss, idx


torch.manual_seed(32)
centres = torch.randn(10, 16)


def clusters(n):
    return centres[torch.randint(0, 10, (n,))] + 0.1 * torch.randn(n, 16)


model = VQAE()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for it in range(700):
    x = clusters(96)
    rec, vq_loss, idx = model(x)
    loss = F.mse_loss(rec, x) + vq_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 100 == 0:
        print(f"it {it} loss {loss.item():.4f} codes {idx.unique().numel()}")
with torch.no_grad():
    x = clusters(2000)
    print(f"final mse {F.mse_loss(model(x)[0], x).item():.4f}")
