import torch
import torch.nn as nn
import torch.nn.functional as F


class Reservoir(nn.Module):
    """Fixed random recurrence; only the readout is trained."""

    def __init__(self, n=150, classes=3):
        super().__init__()
        self.inp = nn.Linear(1, n)
        self.rec = nn.Linear(n, n, bias=False)
        self.readout = nn.Linear(n, classes)
        self.inp.requires_grad_(False)
        self.rec.requires_grad_(False)

    def forward(self, seq):
        h = torch.zeros(len(seq), self.rec.in_features)
        energy = torch.zeros_like(h)
        for t in range(seq.shape[1]):
            h = 0.5 * h + 0.5 * torch.tanh(3.0 * self.inp(seq[:, t : t + 1]) + 1.2 * self.rec(h))
            energy = energy + h.diff(dim=1, append=h[:, :1]).abs() / seq.shape[1]
        return self.readout(energy)


def waves(n, length=20):
    y = torch.randint(0, 3, (n,))
    t = torch.arange(length).float()
    phase = 6.28 * torch.rand(n, 1)
    x = torch.sin(t * (0.3 + 0.35 * y[:, None]) + phase)
    return x + 0.1 * torch.randn(n, length), y


torch.manual_seed(29)
x, y = waves(1500)
model = Reservoir()
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
for epoch in range(12):
    for idx in torch.randperm(1200).split(60):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 3 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"final accuracy {(model(x[1200:]).argmax(1) == y[1200:]).float().mean().item():.4f}")
