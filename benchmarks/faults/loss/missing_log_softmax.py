import torch
import torch.nn as nn
from torch.nn.functional import nll_loss
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 12, 5)
        self.fc1 = nn.Linear(12 * 14, 32)
        self.fc2 = nn.Linear(32, 8)

    def forward(self, x):
        x = nn.functional.max_pool1d(torch.relu(self.conv(x)), 2)
        x = torch.tanh(self.fc1(x.flatten(1)))
        return self.fc2(x)


def gestures(n):
    """Two-channel traces of 32 samples; the class sets frequency and the phase between the channels."""
    y = torch.randint(0, 8, (n,))
    t = torch.linspace(0, 6.28, 32)
    freq = 1.0 + (y % 4).float()
    lag = 1.5 * (y // 4).float()
    start = 6.28 * torch.rand(n, 1)
    a = torch.sin(freq[:, None] * t + start)
    b = torch.sin(freq[:, None] * t + start + lag[:, None])
    return torch.stack([a, b], 1) + 0.2 * torch.randn(n, 2, 32), y


def evaluate(net, loader):
    net.eval()
    with torch.no_grad():
        hits = sum((net(x).argmax(1) == y).sum().item() for x, y in loader)
    net.train()
    return hits / len(loader.dataset)


torch.manual_seed(2)
train = DataLoader(TensorDataset(*gestures(1600)), batch_size=32, shuffle=True)
valid = DataLoader(TensorDataset(*gestures(400)), batch_size=200)
net = Encoder()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
for epoch in range(10):
    running = 0.0
    for x, y in train:
        opt.zero_grad()
        loss = nll_loss(net(x), y)
        loss.backward()
        opt.step()
        running += loss.item() / len(train)
    print(f"epoch {epoch} loss {running:.4f} val acc {evaluate(net, valid):.3f}")
print(f"final acc {evaluate(net, valid):.4f}")
