import torch
import torch.nn as nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


def make_loader(batch_size=32):
    x = torch.rand(2000, 4) * 2 - 1
    y = torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] - 0.5 * x[:, 3:].abs()
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)


def train_one_epoch(model, loader, optimizer, scheduler):
    model.train()
    running = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item() * len(x)
    return running / len(loader.dataset)


def main():
    torch.manual_seed(0)
    loader = make_loader()
    model = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = StepLR(optimizer, step_size=5, gamma=0.3)
    for epoch in range(15):
        loss = train_one_epoch(model, loader, optimizer, scheduler)
        print(f"[{epoch + 1}/15] train loss: {loss:.5f}")
    print(f"final loss {loss:.6f}")


if __name__ == "__main__":
    main()
