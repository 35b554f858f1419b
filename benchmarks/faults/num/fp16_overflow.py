import torch
import torch.nn as nn


class Gram(nn.Module):
    """Second-order pooling of a feature map."""

    def forward(self, f):
        b, c, h, w = f.shape
        f = f.reshape(b, c, h * w)
        g = f @ f.transpose(1, 2) / (h * w)
        return torch.log1p(g.float().flatten(1).abs())


class TextureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 5)
        self.pool = Gram()
        self.fc = nn.Linear(64, 4)

    def forward(self, x):
        return self.fc(self.pool(torch.relu(self.conv(x))))


def textures(n, size=36):
    """Stripes in four directions, contrast from weak to strong."""
    y = torch.randint(0, 4, (n,))
    angle = 0.785 * y.float()
    t = torch.arange(size).float()
    phase = angle.cos()[:, None, None] * t[:, None] + angle.sin()[:, None, None] * t
    contrast = torch.empty(n, 1, 1).log_normal_(1.0, 0.8)
    return (contrast * (torch.sin(1.3 * phase) + 0.5 * torch.randn(n, size, size)))[:, None], y


torch.manual_seed(86)
model = TextureNet()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(120):
    x, y = textures(16)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
    loss = nn.functional.cross_entropy(logits.float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
x, y = textures(200)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    acc = (model(x).argmax(1) == y).float().mean()
print(f"final acc {acc.item():.4f}")
