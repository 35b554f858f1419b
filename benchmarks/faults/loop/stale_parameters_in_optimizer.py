import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(16)


class Backbone(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.layer1 = nn.Linear(32, 64)
        self.layer2 = nn.Linear(64, 4)
        self.fc = nn.Linear(4, num_classes)

    def forward(self, x):
        x = F.relu(self.layer1(x))
        x = self.layer2(x)
        return self.fc(x)


model = Backbone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

# our task has six classes and needs a wider feature
model.layer2 = nn.Sequential(nn.Linear(64, 16), nn.ReLU())
model.fc = nn.Linear(16, 6)

centers = torch.randn(3, 6, 32)
y = torch.randint(0, 6, (2400,))
x = centers[torch.randint(0, 3, (2400,)), y] * 0.8 + torch.randn(2400, 32)
x_train, y_train, x_val, y_val = x[:2000], y[:2000], x[2000:], y[2000:]

for epoch in range(10):
    for i in range(0, 2000, 50):
        xb, yb = x_train[i : i + 50], y_train[i : i + 50]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        val = F.cross_entropy(model(x_val), y_val).item()
    print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f}")
print(f"final val_loss {val:.4f}")
