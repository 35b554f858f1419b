import numpy as np
import torch
from torch import nn


def build(dim, hidden=48):
    model = nn.Sequential(nn.Linear(dim, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def run_epoch(model, optimizer, x, y, rng):
    losses = []
    for idx in np.array_split(rng.permutation(len(x)), 20):
        loss = nn.functional.l1_loss(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses))


def main():
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.uniform(-2, 2, size=(1000, 5)).astype(np.float32))
    y = (x[:, 0] * torch.sin(2 * x[:, 1]) + x[:, 2].abs() - x[:, 3] * x[:, 4]).unsqueeze(1)
    for epoch in range(40):
        model, optimizer = build(x.shape[1])
        loss = run_epoch(model, optimizer, x, y, rng)
        if epoch % 5 == 0:
            print(f"epoch {epoch} mae {loss:.4f}")
    with torch.no_grad():
        print(f"final mae {nn.functional.l1_loss(model(x), y).item():.4f}")


if __name__ == "__main__":
    main()
