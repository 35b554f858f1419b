import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS, UNITS = 10, 24


class Recaller(nn.Module):
    """Reads ten symbols and reports how often each one came up."""

    def __init__(self, symbols=5):
        super().__init__()
        self.embed = nn.Embedding(symbols, 12)
        self.rnn = nn.GRU(12, UNITS)
        self.fc = nn.Sequential(nn.Linear(STEPS * UNITS, 64), nn.ReLU(), nn.Linear(64, symbols))

    def forward(self, ids):
        h = self.embed(ids.t())
        out, _ = self.rnn(h)
        flat = out.view(-1, STEPS * UNITS)
        return self.fc(flat)


def batch(n):
    p = torch.rand(n, 5)
    ids = torch.multinomial(p, STEPS, replacement=True)
    counts = torch.zeros(n, 5).scatter_add_(1, ids, torch.ones(n, STEPS))
    return ids, counts / STEPS


torch.manual_seed(20)
model = Recaller()
opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
for it in range(350):
    ids, freq = batch(32)
    loss = F.mse_loss(model(ids), freq)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 50 == 0:
        print(f"it {it} loss {loss.item():.5f}")
ids, freq = batch(500)
with torch.no_grad():
    print(f"final mse {F.mse_loss(model(ids), freq).item():.6f}")
