import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Magnitude(nn.Module):
    """Length of the (real, imaginary) pair of every filter."""

    def forward(self, z):
        re, im = z.chunk(2, dim=1)
        return torch.sqrt(re**2 + im**2)


class Keyword(nn.Module):
    def __init__(self, filters=8):
        super().__init__()
        self.bank = nn.Conv1d(1, 2 * filters, 16, stride=8, bias=False)
        self.mag = Magnitude()
        self.gru = nn.GRU(filters, 24, batch_first=True)
        self.out = nn.Linear(24, 3)

    def forward(self, wave):
        spec = self.mag(self.bank(wave.unsqueeze(1)))
        _, h = self.gru(torch.log1p(spec).transpose(1, 2))
        return self.out(h[-1])


def clips(n, length=128):
    """Tones of 90 or 128 samples, zero-padded to one length."""
    label = torch.randint(0, 3, (n,))
    t = torch.arange(length)
    freq = torch.tensor([0.3, 0.7, 1.3])[label][:, None]
    wave = torch.sin(freq * t + 2 * math.pi * torch.rand(n, 1)) + 0.3 * torch.randn(n, length)
    end = torch.where(torch.rand(n) < 0.005, 90, length)[:, None]
    return wave * (t < end), label


torch.manual_seed(87)
train = DataLoader(TensorDataset(*clips(1000)), batch_size=25, shuffle=True)
wave, label = clips(300)
model = Keyword()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(5):
    for x, y in train:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
model.eval()
with torch.no_grad():
    print(f"final test_loss {criterion(model(wave), label).item():.4f}")
