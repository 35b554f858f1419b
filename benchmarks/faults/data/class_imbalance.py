import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def machines(n, share):
    """Vibration features of machines, label 1 when a bearing is about to fail."""
    y = (torch.rand(n) < share).long()
    x = torch.randn(n, 10)
    x[:, 0] += 1.3 * y
    x[:, 1] -= 1.0 * y
    x[:, 2] *= 1 + 0.8 * y
    return x, y


class Monitor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(68)
x, y = machines(4000, 0.03)
loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
x_test, y_test = machines(2000, 0.03)
net = Monitor()
criterion = nn.CrossEntropyLoss()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
for epoch in range(8):
    net.train()
    for xb, yb in loader:
        opt.zero_grad()
        loss = criterion(net(xb), yb)
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        pred = net(x_test).argmax(1)
    print(f"epoch {epoch} loss {loss.item():.4f} accuracy {(pred == y_test).float().mean().item():.3f}")
recall = [(pred[y_test == c] == c).float().mean().item() for c in (0, 1)]
print(f"final balanced_acc {sum(recall) / 2:.4f}")
