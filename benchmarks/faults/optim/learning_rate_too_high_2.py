import torch
from torch import nn

torch.manual_seed(6)
X = torch.randn(1024, 8)
w1, w2 = torch.randn(8, 3), torch.randn(3, 1)
Y = torch.tanh(X @ w1) @ w2 + 0.05 * torch.randn(1024, 1)

net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
sgd = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
mse = nn.MSELoss()

for it in range(600):
    idx = torch.randint(0, 1024, (64,))
    pred = net(X[idx])
    loss = mse(pred, Y[idx])
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    if it % 100 == 0:
        print(f"iter {it}: loss = {loss.item():.5f}")

with torch.no_grad():
    print(f"final mse {mse(net(X), Y).item():.5f}")
