import torch
import torch.nn as nn

torch.manual_seed(1)

X = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
Y = torch.tensor([[0.0], [1.0], [1.0], [0.0]])

net = nn.Sequential(nn.Linear(2, 8), nn.Sigmoid(), nn.Linear(8, 1), nn.Sigmoid())
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=2.0, momentum=0.9)

for epoch in range(2000):
    out = net(X)
    loss = criterion(out, Y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 250 == 0:
        print("epoch", epoch, "loss", loss.item())

with torch.no_grad():
    print(net(X).round(decimals=3).squeeze().tolist())
    print(f"final mse {criterion(net(X), Y).item():.6f}")
