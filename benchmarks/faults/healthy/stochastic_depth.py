import torch
import torch.nn as nn


class ResidualMLP(nn.Module):
    """Pre-norm residual MLP; the last layer of every branch starts at zero, branches are skipped at random."""

    def __init__(self, d_in, width=32, depth=16, drop=0.25):
        super().__init__()
        self.drop = drop
        self.stem = nn.Linear(d_in, width)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            block = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            nn.init.zeros_(block[-1].weight)
            nn.init.zeros_(block[-1].bias)
            self.blocks.append(block)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if self.training:
                if torch.rand(()) < self.drop:
                    continue
                x = x + block(x) / (1 - self.drop)
            else:
                x = x + block(x)
        return self.head(x)


def rings(n):
    r = torch.rand(n) * 3
    v = torch.randn(n, 3)
    return v / v.norm(dim=1, keepdim=True) * r[:, None], (r.floor() % 2).long()


def main():
    torch.manual_seed(29)
    model = ResidualMLP(3)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    for step in range(200):
        x, y = rings(64)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    x, y = rings(1000)
    with torch.inference_mode():
        print(f"final acc {(model(x).argmax(1) == y).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
