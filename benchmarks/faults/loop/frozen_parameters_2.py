import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, d=16, width=48, depth=5, classes=4):
        super().__init__()
        self.inp = nn.Linear(d, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        for block in self.blocks:
            h = h + torch.tanh(block(h))
        return self.out(h)


def param_groups(model, lr, tune_last=1):
    """Discriminative fine-tuning: only the last blocks and the head get a learning rate."""
    first = len(model.blocks) - tune_last
    for part in [model.inp, *model.blocks[:first]]:
        part.requires_grad_(False)
    return [
        {"params": [p for b in model.blocks[first:] for p in b.parameters()], "lr": lr},
        {"params": model.out.parameters(), "lr": 3 * lr},
    ]


def spirals(n, d=16, classes=4):
    y = torch.randint(0, classes, (n,))
    r = torch.rand(n)
    t = 5.0 * r + 6.2832 * y / classes + 0.15 * torch.randn(n)
    x = torch.stack([r * torch.cos(t), r * torch.sin(t)], 1)
    return torch.cat([2 * x, 0.3 * torch.randn(n, d - 2)], 1), y


def main():
    torch.manual_seed(3)
    x, y = spirals(3000)
    model = Net()
    optimizer = torch.optim.Adam(param_groups(model, 2e-3))
    for epoch in range(14):
        for idx in torch.randperm(2400).split(80):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 3 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        acc = (model(x[2400:]).argmax(1) == y[2400:]).float().mean().item()
    print(f"final accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
