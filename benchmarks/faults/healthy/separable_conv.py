"""Depthwise filters followed by 1x1 mixing, as in Xception: no activation between the two on purpose."""

import torch
import torch.nn as nn

torch.manual_seed(27)


def block(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, inside, 3, padding=1, groups=inside),
        nn.Conv2d(inside, outside, 1),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
    )


def stripes(n):
    kind = torch.randint(0, 2, (n,))
    wave = torch.sin(torch.arange(12) * 1.3 + 6.28 * torch.rand(n, 1))
    across = wave[:, None, :].expand(n, 12, 12)
    return torch.where(kind[:, None, None] == 1, across, across.transpose(1, 2))[:, None] + torch.randn(
        n, 1, 12, 12
    ), kind


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), block(16, 32), nn.MaxPool2d(2), block(32, 32),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(150):
    images, kind = stripes(32)
    loss = nn.functional.cross_entropy(model(images), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.4f}")
model.eval()
images, kind = stripes(500)
with torch.no_grad():
    print(f"final accuracy {(model(images).argmax(1) == kind).float().mean().item():.4f}")
