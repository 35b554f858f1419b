import torch
import torch.nn as nn

torch.manual_seed(13)
centers = 2.0 * torch.randn(7, 10)
species = torch.randint(0, 7, (2100,))
traits = centers[species] + torch.randn(2100, 10)
x_train, y_train = traits[:1800], species[:1800]
x_test, y_test = traits[1800:], species[1800:]

model = nn.Sequential(
    nn.Linear(10, 64),
    nn.ReLU(),
    nn.Linear(64, 32),
    nn.ReLU(),
    nn.Linear(32, 1),
)
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


def predict(x):
    with torch.no_grad():
        return model(x).squeeze(1).round().clamp(0, 6).long()


for epoch in range(1, 13):
    losses = []
    for rows in torch.randperm(1800).split(60):
        pred = model(x_train[rows])
        loss = criterion(pred, y_train[rows].float().unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if epoch % 3 == 0:
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")

print(f"final acc {(predict(x_test) == y_test).float().mean().item():.4f}")
