"""A quick network behind a data set. `--slow` makes every sample take three milliseconds to load."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, count, wait):
        self.x = torch.randn(count, 16)
        self.y = (self.x[:, :1] - self.x[:, 1:2]).tanh()
        self.wait = wait

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if self.wait:
            time.sleep(self.wait)
        return self.x[index], self.y[index]


def main():
    torch.manual_seed(0)
    data = Numbers(512, 0.003 if "--slow" in sys.argv else 0.0)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
