import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)


class Tower(nn.Module):
    def __init__(self, d_in):
        super().__init__()
        self.fc1 = nn.Linear(d_in, 64)
        self.fc2 = nn.Linear(64, 24)

    def forward(self, x):
        return F.normalize(self.fc2(F.relu(self.fc1(x))), dim=-1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Tower(32), Tower(20)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        return self.log_scale.exp() * self.image(a) @ self.text(b).T


to_image, to_text = torch.randn(6, 32), torch.randn(6, 20)


def pairs(n):
    z = torch.randn(n, 6)
    return torch.tanh(z @ to_image) + 0.1 * torch.randn(n, 32), torch.tanh(z @ to_text) + 0.1 * torch.randn(n, 20)


model = TwoTower()
opt = torch.optim.AdamW(
    [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ],
    lr=3e-3,
)
labels = torch.arange(64)
for step in range(500):
    logits = model(*pairs(64))
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        model.log_scale.clamp_(max=4.0)
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {model.log_scale.exp().item():.2f}")
with torch.no_grad():
    hits = [(model(*pairs(64)).argmax(1) == labels).float().mean() for _ in range(10)]
print(f"final recall_at_1 {torch.stack(hits).mean().item():.4f}")
