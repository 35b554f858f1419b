import torch
import torch.nn as nn
import torch.nn.functional as F

N_TRAIN = 40


def assay(n):
    """Molecule descriptors and a binary activity."""
    x = torch.randn(n, 24)
    score = x[:, :6].sum(1) + 1.5 * x[:, 6] * x[:, 7] + 0.5 * torch.randn(n)
    return x, (score > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(24, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 2)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        x = self.drop(torch.relu(self.fc1(x)))
        x = self.drop(torch.relu(self.fc2(x)))
        return self.fc3(x)


torch.manual_seed(71)
x_val, y_val = assay(600)
x, y = assay(N_TRAIN)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
for step in range(600):
    net.train()
    rows = torch.randint(0, N_TRAIN, (32,))
    loss = F.cross_entropy(net(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 60 == 59:
        net.eval()
        with torch.no_grad():
            val = F.cross_entropy(net(x_val), y_val).item()
        print(f"step {step} train loss {loss.item():.4f} val loss {val:.4f}")
print(f"final val_loss {val:.4f}")
