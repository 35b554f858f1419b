import torch
import torch.nn as nn


class Classifier(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 48), nn.ELU(), nn.Linear(48, classes))
        self.logp = nn.LogSoftmax(dim=0)

    def forward(self, x):
        return self.logp(self.body(x))


def readings(n):
    """Five operating states with unequal shares."""
    share = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05])
    y = torch.multinomial(share, n, replacement=True)
    return profile[y] + 1.3 * torch.randn(n, 16), y


torch.manual_seed(29)
profile = torch.randn(5, 16)
x, y = readings(2000)
x_new, y_new = readings(400)
model = Classifier()
nll = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for epoch in range(15):
    for rows in torch.randperm(len(x)).split(40):
        loss = nll(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 3 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")

hits = 0
with torch.no_grad():
    for reading, state in zip(x_new, y_new, strict=True):
        hits += int(model(reading[None]).argmax(1).item() == state.item())
print(f"final acc {hits / 400:.4f}")
