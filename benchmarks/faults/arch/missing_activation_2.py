import torch
from torch import nn

torch.manual_seed(9)


def rings(n):
    label = torch.randint(0, 3, (n,))
    radius = label + 0.6 + 0.15 * torch.randn(n)
    angle = torch.rand(n) * 6.2832
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), label


model = nn.Sequential(
    nn.Linear(2, 64),
    nn.Dropout(0.1),
    nn.Linear(64, 64),
    nn.Dropout(0.1),
    nn.Linear(64, 3),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
points, label = rings(2000)
for epoch in range(10):
    model.train()
    for rows in torch.randperm(2000).split(50):
        optimizer.zero_grad()
        loss = criterion(model(points[rows]), label[rows])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
model.eval()
points, label = rings(1000)
with torch.no_grad():
    print(f"final accuracy {(model(points).argmax(1) == label).float().mean().item():.4f}")
