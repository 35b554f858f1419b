import torch
import torch.nn as nn

torch.manual_seed(17)

# two interleaved spirals
n = 600
theta = torch.sqrt(torch.rand(n)) * 6
sign = torch.randint(0, 2, (n,))
angle = theta + sign * 3.14159
points = torch.stack([theta * torch.cos(angle), theta * torch.sin(angle)], dim=1) / 6
points = points + 0.01 * torch.randn(n, 2)
labels = sign.float().unsqueeze(1)

model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.999)
bce = nn.BCEWithLogitsLoss()

for step in range(1200):
    pick = torch.randperm(n)[:100]
    opt.zero_grad()
    loss = bce(model(points[pick]), labels[pick])
    loss.backward()
    opt.step()
    if step % 200 == 0:
        print(f"step {step} loss {loss.item():.4f}")

with torch.no_grad():
    acc = ((model(points) > 0).float() == labels).float().mean().item()
print(f"final acc {acc:.4f}")
