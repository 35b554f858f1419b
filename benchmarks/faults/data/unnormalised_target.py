import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(62)
n = 2000
features = torch.randn(n, 8)
weights = torch.tensor([30.0, -22.0, 18.0, 12.0, -9.0, 6.0, 4.0, 2.0])
price = 1000 * (280 + features @ weights + 15 * torch.relu(features[:, 0]) * features[:, 2] + 3 * torch.randn(n))
train_x, test_x = features[:1600], features[1600:]
train_y, test_y = price[:1600], price[1600:]

model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=32, shuffle=True)
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def predict(x):
    return model(x).squeeze(1)


for epoch in range(15):
    for xb, yb in loader:
        loss = criterion(predict(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 3 == 0:
        print(f"epoch {epoch} loss {loss.item():.6g}")

model.eval()
with torch.no_grad():
    mae = (predict(test_x) - test_y).abs().mean().item()
print(f"final mae {mae:.1f}")
