import torch
import torch.nn as nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 48)
        self.bn1 = nn.BatchNorm1d(48)
        self.fc2 = nn.Linear(48, 16)
        self.bn2 = nn.BatchNorm1d(16)

    def forward(self, x):
        x = torch.relu(self.bn1(self.fc1(x)))
        return torch.relu(self.bn2(self.fc2(x)))


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.species = nn.Linear(16, 5)
        self.habitat = nn.Linear(16, 2)

    def forward(self, x, task):
        return getattr(self, task)(self.backbone(x))


def fit(model, task, x, y, lr, epochs):
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)
    model.train()
    for epoch in range(epochs):
        for i in torch.randperm(len(x)).split(50):
            loss = nn.functional.cross_entropy(model(x[i], task), y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"{task} epoch {epoch} loss {loss.item():.4f}")


def accuracy(model, task, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x, task).argmax(1) == y).float().mean().item()


torch.manual_seed(36)
centers = torch.randn(5, 16) * 1.5
y1 = torch.randint(0, 5, (1000,))
x1 = centers[y1] + torch.randn(1000, 16)
x2 = 4.0 * torch.randn(800, 16) + 3.0
y2 = (x2[:, 0] > 3.0).long()

model = TwoHeads()
fit(model, "species", x1, y1, lr=0.05, epochs=6)
print(f"species acc {accuracy(model, 'species', x1, y1):.3f}")

# keep the species model as it is, only the new head learns
model.backbone.requires_grad_(False)
model.species.requires_grad_(False)
fit(model, "habitat", x2, y2, lr=0.05, epochs=6)
print(f"habitat acc {accuracy(model, 'habitat', x2, y2):.3f}")
print(f"final acc {accuracy(model, 'species', x1, y1):.4f}")
