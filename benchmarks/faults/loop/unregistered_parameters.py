import torch
from torch import nn


class ResidualMLP(nn.Module):
    def __init__(self, in_dim, width, depth, out_dim):
        super().__init__()
        self.stem = nn.Linear(in_dim, width)
        self.blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(depth)]
        self.head = nn.Linear(width, out_dim)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def target_fn(x):
    return torch.sin(2.5 * x[:, :1]) * torch.cos(2 * x[:, 1:2]) + x[:, 2:3] * x[:, 3:4]


def main():
    torch.manual_seed(19)
    model = ResidualMLP(4, 12, 3, 1)
    print("parameters:", sum(p.numel() for p in model.parameters()))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(700):
        x = torch.rand(128, 4) * 3 - 1.5
        loss = nn.functional.mse_loss(model(x), target_fn(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    x = torch.rand(2000, 4) * 3 - 1.5
    with torch.no_grad():
        print(f"final mse {nn.functional.mse_loss(model(x), target_fn(x)).item():.5f}")


if __name__ == "__main__":
    main()
