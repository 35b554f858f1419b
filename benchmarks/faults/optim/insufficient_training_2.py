import torch
import torch.nn as nn

STEPS = 36


class Shapes(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(16 * 36, 4)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def draw(n):
    kind = torch.randint(0, 4, (n,))
    image = 0.4 * torch.randn(n, 1, 12, 12)
    for i, k in enumerate(kind.tolist()):
        a = int(torch.randint(1, 7, ()))
        if k == 0:
            image[i, 0, a : a + 4, :] += 1
        elif k == 1:
            image[i, 0, :, a : a + 4] += 1
        elif k == 2:
            image[i, 0, a : a + 5, a : a + 5] += 1
        else:
            image[i, 0] += torch.eye(12) + torch.eye(12).roll(1, 0)
    return image, kind


torch.manual_seed(19)
net = Shapes()
optimizer = torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.9)
for step in range(STEPS):
    x, y = draw(32)
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
x, y = draw(500)
with torch.no_grad():
    print(f"final loss {nn.functional.cross_entropy(net(x), y).item():.4f}")
