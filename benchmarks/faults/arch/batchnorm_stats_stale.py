import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def conv_block(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(c_out, momentum=0.001),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = conv_block(3, 8)
        self.block2 = conv_block(8, 16)
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(self.block2(self.block1(x)).mean((2, 3)))


def pictures(n):
    """Brightness around 0.5, contrast low; the class is a colour pattern."""
    y = torch.randint(0, 5, (n,))
    return 0.5 + 0.1 * patterns[y] + 0.05 * torch.randn(n, 3, 10, 10), y


torch.manual_seed(38)
patterns = torch.randn(5, 3, 10, 10)
train = DataLoader(TensorDataset(*pictures(1000)), batch_size=40, shuffle=True)
x_test, y_test = pictures(300)
net = SmallNet()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
for epoch in range(6):
    net.train()
    hits = 0
    for x, y in train:
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += (out.argmax(1) == y).sum().item()
    print(f"epoch {epoch} loss {loss.item():.4f} train acc {hits / 1000:.3f}")
net.eval()
with torch.no_grad():
    print(f"final test_acc {(net(x_test).argmax(1) == y_test).float().mean().item():.4f}")
