import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def transactions(n, rate=0.04):
    fraud = (torch.rand(n) < rate).long()
    x = torch.randn(n, 12)
    x[fraud == 1, :3] += torch.tensor([1.5, -1.2, 1.0])
    x[fraud == 1, 3] *= 2.5
    return x, fraud


def balanced_accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        pred = model(x).argmax(1)
    recalls = [(pred[y == c] == c).float().mean().item() for c in (0, 1)]
    return sum(recalls) / 2, recalls


def main():
    torch.manual_seed(23)
    x, y = transactions(5000)
    xv, yv = transactions(4000)
    counts = torch.bincount(y, minlength=2).float()
    weight = counts.sum() / (2 * counts)
    print("class counts", counts.tolist(), "weights", [round(w, 2) for w in weight.tolist()])
    criterion = nn.CrossEntropyLoss(weight=weight)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 2))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-3)
    for epoch in range(8):
        model.train()
        for xb, yb in DataLoader(TensorDataset(x, y), 100, shuffle=True):
            opt.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            opt.step()
        score, recalls = balanced_accuracy(model, xv, yv)
        print(f"epoch {epoch} loss {loss.item():.4f} recall {recalls[0]:.3f} {recalls[1]:.3f}")
    print(f"final balanced_acc {score:.4f}")


if __name__ == "__main__":
    main()
