import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)
        for fc in (self.fc1, self.fc2):
            nn.init.kaiming_normal_(fc.weight, nonlinearity="relu")
            nn.init.zeros_(fc.bias)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(x)))


class ResMLP(nn.Module):
    def __init__(self, width=32, depth=14):
        super().__init__()
        self.stem = nn.Linear(10, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


def sample(n):
    x = torch.randn(n, 10)
    s = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3]
    return x, (s > -0.5).long() + (s > 0.5).long()


torch.manual_seed(18)
x, y = sample(2000)
x_test, y_test = sample(500)
model = ResMLP()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
for epoch in range(6):
    for rows in torch.randperm(2000).split(50):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    acc = (model(x_test).argmax(1) == y_test).float().mean()
print(f"final acc {acc.item():.4f}")
