import torch
import torch.nn as nn


class ConvStack(nn.Module):
    def __init__(self, channels=12, depth=5):
        super().__init__()
        self.stem = nn.Conv1d(1, channels, 5, padding=2)
        self.body = nn.ModuleList(nn.Conv1d(channels, channels, 3, padding=1) for _ in range(depth))
        self.fc = nn.Linear(channels, 3)
        for m in self.modules():
            if isinstance(m, nn.Conv1d | nn.Linear):
                nn.init.normal_(m.weight, std=0.005)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for conv in self.body:
            x = torch.relu(conv(x))
        return self.fc(x.amax(-1))


def beats(n):
    """Heart-beat like pulses: narrow, wide or double."""
    kind = torch.randint(0, 3, (n,))
    t = torch.linspace(-1, 1, 40)
    center = torch.rand(n, 1) - 0.5
    width = torch.where(kind == 1, 0.25, 0.08)[:, None]
    x = torch.exp(-(((t - center) / width) ** 2))
    second = torch.exp(-(((t - center - 0.35) / 0.08) ** 2))
    x = x + (kind == 2).float()[:, None] * second
    return (x + 0.1 * torch.randn(n, 40))[:, None], kind


def run(model, optimizer, steps):
    for step in range(steps):
        x, y = beats(40)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 60 == 0:
            print(f"step {step} loss {loss.item():.4f}")


torch.manual_seed(33)
model = ConvStack()
run(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), 300)
x, y = beats(600)
with torch.no_grad():
    print(f"final acc {(model(x).argmax(1) == y).float().mean().item():.4f}")
