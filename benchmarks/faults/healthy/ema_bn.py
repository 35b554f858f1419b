import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class SmallConv(nn.Module):
    def __init__(self, n_classes=4):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(1, 12, 5, padding=2), nn.BatchNorm1d(12)
        self.conv2, self.bn2 = nn.Conv1d(12, 24, 5, padding=2), nn.BatchNorm1d(24)
        self.fc = nn.Linear(24, n_classes)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.bn1(self.conv1(x))), 2)
        return self.fc(F.relu(self.bn2(self.conv2(x))).mean(2))


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.module = copy.deepcopy(model).eval()
        self.module.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters(), strict=True):
            e.lerp_(p, 1 - self.decay)
        for e, b in zip(self.module.buffers(), model.buffers(), strict=True):
            e.copy_(b)


def signals(n):
    y = torch.randint(0, 4, (n,))
    t = torch.arange(40.0)
    f = torch.tensor([0.3, 0.5, 0.8, 1.2])[y][:, None]
    return (torch.sin(f * t + 6.28 * torch.rand(n, 1)) + 0.5 * torch.randn(n, 40)).unsqueeze(1), y


torch.manual_seed(9)
model = SmallConv()
ema = EMA(model, decay=0.97)
opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(250):
    x, y = signals(48)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update(model)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
x, y = signals(800)
with torch.no_grad():
    print(f"final acc {(ema.module(x).argmax(1) == y).float().mean().item():.4f}")
