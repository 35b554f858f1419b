import torch
import torch.nn.functional as F
from torch import nn


class Digits:
    """Synthetic 12x12 grey images of eight symbols, pixels in [0, 1]."""

    def __init__(self, classes=8):
        self.symbols = torch.rand(classes, 144)

    def sample(self, n):
        y = torch.randint(0, len(self.symbols), (n,))
        return 0.5 * self.symbols[y] + 0.5 * torch.rand(n, 144), y


class MLP(nn.Module):
    def __init__(self, width=64, classes=8):
        super().__init__()
        self.fc1 = nn.Linear(144, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h = torch.tanh(self.fc1(x))
        h = torch.tanh(self.fc2(h))
        h = torch.tanh(self.fc3(h))
        return self.out(h)


torch.manual_seed(14)
data = Digits()
model = MLP()
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
for step in range(500):
    x, y = data.sample(64)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:4d} loss {loss.item():.4f}")

x, y = data.sample(800)
with torch.no_grad():
    print(f"final acc {(model(x).argmax(1) == y).float().mean().item():.4f}")
