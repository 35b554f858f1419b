import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

DEPTH, WIDTH = 9, 32


class DeepNet(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = []
        for i in range(DEPTH):
            linear = nn.Linear(12 if i == 0 else WIDTH, WIDTH)
            nn.init.kaiming_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
            blocks += [linear, nn.Sigmoid()]
        self.features = nn.Sequential(*blocks)
        self.classifier = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.classifier(self.features(x))


def dataset(n, gen):
    x = torch.randn(n, 12, generator=gen)
    y = 2 * (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2:5].sum(1) > 0).long()
    return TensorDataset(x, y)


torch.manual_seed(14)
gen = torch.Generator().manual_seed(15)
train = DataLoader(dataset(2000, gen), batch_size=50, shuffle=True)
test = DataLoader(dataset(500, gen), batch_size=500)
model = DeepNet()
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
for epoch in range(10):
    total = 0.0
    for x, y in train:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(train):.4f}")
x, y = next(iter(test))
with torch.no_grad():
    print(f"final acc {(model(x).argmax(1) == y).float().mean().item():.4f}")
