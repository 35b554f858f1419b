import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 12
torch.manual_seed(41)
x = torch.randn(1024, 12)
y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
loader = DataLoader(TensorDataset(x[:800], y[:800]), batch_size=40, shuffle=True)
model = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
ramp = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: (epoch + 1) / EPOCHS)
for epoch in range(EPOCHS):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
    ramp.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"final mse {nn.functional.mse_loss(model(x[800:]), y[800:]).item():.4f}")
