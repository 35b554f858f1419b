import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tones(Dataset):
    """Short noisy waveforms, one of five pitches."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 5, (n,), generator=g)
        t = torch.arange(40.0)
        freq = 0.3 + 0.25 * self.y[:, None].float()
        phase = 6.28 * torch.rand(n, 1, generator=g)
        self.x = torch.sin(freq * t + phase) + 0.3 * torch.randn(n, 40, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i].unsqueeze(0), self.y[i]


torch.manual_seed(8)
train_loader = DataLoader(Tones(1200, 0), batch_size=40, shuffle=True)
test_loader = DataLoader(Tones(400, 1), batch_size=200)
net = nn.Sequential(
    nn.Conv1d(1, 16, 7, padding=3),
    nn.ReLU(),
    nn.Conv1d(16, 16, 7, stride=2),
    nn.ReLU(),
    nn.AdaptiveMaxPool1d(1),
    nn.Flatten(),
    nn.Linear(16, 5),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.3)
criterion = nn.CrossEntropyLoss()

for epoch in range(10):
    for x, y in train_loader:
        loss = criterion(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", round(loss.item(), 4))

correct = 0
with torch.no_grad():
    for x, y in test_loader:
        correct += (net(x).argmax(dim=1) == y).sum().item()
print(f"final acc {correct / 400:.4f}")
