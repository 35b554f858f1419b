import copy

import torch
import torch.nn as nn


class ConvClassifier(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 12, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(12)
        self.fc = nn.Linear(12 * 16, classes)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 2)
        return self.fc(torch.relu(self.bn2(self.conv2(x))).flatten(1))


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).eval()
        self.model.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for averaged, live in zip(self.model.parameters(), model.parameters()):
            averaged.mul_(self.decay).add_(live, alpha=1 - self.decay)


torch.manual_seed(39)
stamps = torch.rand(5, 1, 8, 8) * 3


def images(n):
    y = torch.randint(0, 5, (n,))
    return stamps[y] + torch.randn(n, 1, 8, 8) + 6.0, y


model = ConvClassifier()
ema = EMA(model, decay=0.98)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(300):
    x, y = images(32)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

x, y = images(800)
with torch.no_grad():
    acc = (ema.model(x).argmax(1) == y).float().mean().item()
print(f"final acc {acc:.4f}")
