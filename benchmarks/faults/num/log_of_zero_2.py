import numpy as np
import torch
from torch import nn


def bce(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return torch.sigmoid(self.out(torch.relu(self.hidden(x)))).squeeze(1)


def applicants(n, rng):
    x = rng.standard_t(2.5, size=(n, 6)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] - x[:, 2] > 0).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


def main():
    rng = np.random.default_rng(81)
    torch.manual_seed(81)
    x, y = applicants(2000, rng)
    x_test, y_test = applicants(500, rng)
    model = Scorer()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(12):
        total = 0.0
        for rows in torch.randperm(2000).split(50):
            opt.zero_grad()
            loss = bce(model(x[rows]), y[rows])
            loss.backward()
            opt.step()
            total += loss.item() / 40
        print(f"epoch {epoch} loss {total:.4f}")
    with torch.no_grad():
        wrong = ((model(x_test) > 0.5) != y_test.bool()).float().mean().item()
        brier = (model(x_test) - y_test).pow(2).mean().item()
    print(f"error rate {wrong:.4f}")
    print(f"final brier {brier:.5f}")


if __name__ == "__main__":
    main()
