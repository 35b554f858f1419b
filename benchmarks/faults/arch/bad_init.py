import torch
import torch.nn as nn
import torch.nn.functional as F


def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.constant_(m.weight, 0.02)
        nn.init.zeros_(m.bias)


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 48)
        self.hidden2 = nn.Linear(48, 48)
        self.out = nn.Linear(48, 8)
        self.apply(init_weights)

    def forward(self, x):
        x = torch.relu(self.hidden(x))
        x = torch.relu(self.hidden2(x))
        return self.out(x)


torch.manual_seed(3)
shapes = (torch.rand(8, 64) > 0.6).float()


def images(n):
    y = torch.randint(0, 8, (n,))
    return shapes[y] + 0.5 * torch.randn(n, 64), y


model = Digits()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(500):
    x, y = images(50)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")
x, y = images(800)
with torch.no_grad():
    print(f"final acc {(model(x).argmax(1) == y).float().mean().item():.4f}")
