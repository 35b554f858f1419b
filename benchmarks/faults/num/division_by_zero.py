import torch
import torch.nn as nn
import torch.nn.functional as F


class TraceNorm(nn.Module):
    """Every trace to zero mean and unit spread."""

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        return centered / centered.abs().mean(-1, keepdim=True)


class Seismo(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = TraceNorm()
        self.conv = nn.Conv1d(1, 8, 7, stride=2)
        self.fc = nn.Linear(8 * 14, 3)

    def forward(self, x):
        h = torch.relu(self.conv(self.norm(x).unsqueeze(1)))
        return self.fc(h.flatten(1))


def recordings(n):
    """Noise, a slow wave or a fast wave, with very different gains per station."""
    kind = torch.randint(0, 3, (n,))
    t = torch.arange(34).float()
    speed = torch.tensor([0.0, 0.4, 1.1])[kind][:, None]
    wave = torch.sin(speed * t + 6.28 * torch.rand(n, 1)) * (kind > 0)[:, None]
    gain = 10 ** torch.randn(n, 1)
    counts = torch.round(50 * gain * (wave + 0.3 * torch.randn(n, 34)))
    return counts, kind


torch.manual_seed(82)
x, y = recordings(2000)
model = Seismo()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for epoch in range(6):
    for rows in torch.randperm(1600).split(40):
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    test = F.cross_entropy(model(x[1600:]), y[1600:], reduction="none")
print(f"final test_nll {test.mean().item():.4f}")
