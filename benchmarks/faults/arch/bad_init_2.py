import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

np.random.seed(9)
torch.manual_seed(9)
joints = np.random.uniform(-np.pi, np.pi, size=(3000, 4)).astype(np.float32)
reach = np.cumsum(joints, axis=1)
position = np.stack([np.cos(reach).sum(1), np.sin(reach).sum(1)], 1).astype(np.float32) / 4
inputs = torch.from_numpy(np.concatenate([np.sin(joints), np.cos(joints)], 1))
targets = torch.from_numpy(position)


class Kinematics(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.l1 = nn.Linear(8, width)
        self.l2 = nn.Linear(width, width)
        self.l3 = nn.Linear(width, 2)
        for layer in (self.l1, self.l2, self.l3):
            nn.init.normal_(layer.weight, mean=0.0, std=1.0)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(x)))))


net = Kinematics()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(14):
    order = np.random.permutation(2500)
    for start in range(0, 2500, 50):
        rows = order[start : start + 50]
        optimizer.zero_grad()
        loss = F.mse_loss(net(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
    if epoch % 2 == 0:
        print(f"[{epoch:02d}] loss {loss.item():.5f}")
with torch.no_grad():
    test = F.mse_loss(net(inputs[2500:]), targets[2500:])
print(f"final test_mse {test.item():.5f}")
