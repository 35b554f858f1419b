import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(27)
w1, w2 = torch.randn(10, 16), torch.randn(16)
x = torch.randn(900, 10)
y = torch.tanh(x @ w1 / 2) @ w2 / 3
train = TensorDataset(x[:600], y[:600])
x_val, y_val = x[600:], y[600:]

loader = DataLoader(train, batch_size=2, shuffle=True)
model = nn.Sequential(
    nn.Linear(10, 64),
    nn.BatchNorm1d(64),
    nn.ReLU(),
    nn.Linear(64, 32),
    nn.BatchNorm1d(32),
    nn.ReLU(),
    nn.Linear(32, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(4):
    model.train()
    running = 0.0
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(xb).squeeze(1), yb)
        loss.backward()
        optimizer.step()
        running += loss.item()
    print(f"epoch {epoch} loss {running / len(loader):.4f}")
model.eval()
with torch.no_grad():
    val = F.mse_loss(model(x_val).squeeze(1), y_val)
print(f"final val_mse {val.item():.4f}")
