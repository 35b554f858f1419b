import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def unit(z, eps=1e-3):
    z = z - z.mean(1, keepdim=True)
    return z / (z.pow(2).mean(1, keepdim=True) + eps).sqrt()


class Siamese(nn.Module):
    def __init__(self, d=24, width=40):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, 8))
        self.compare = nn.Linear(8, 1)

    def forward(self, left, right):
        u, v = unit(self.tower(left)), unit(self.tower(right))
        return self.compare((u - v).abs()).squeeze(1)


def pairs(n, d=24):
    kind = torch.randint(0, 12, (n,))
    same = torch.rand(n) < 0.5
    other = torch.where(same, kind, (kind + torch.randint(1, 12, (n,))) % 12)
    proto = torch.randn(12, d) * 1.2
    return proto[kind] + torch.randn(n, d), proto[other] + torch.randn(n, d), same.float()


def main():
    torch.manual_seed(12)
    left, right, same = pairs(4000)
    loader = DataLoader(TensorDataset(left[:3200], right[:3200], same[:3200]), batch_size=80, shuffle=True)
    model = Siamese()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(12):
        total = 0.0
        for a, b, t in loader:
            loss = criterion(model(a, b), t)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
    with torch.no_grad():
        guess = model(left[3200:], right[3200:]) > 0
        print(f"final accuracy {(guess == (same[3200:] > 0)).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
