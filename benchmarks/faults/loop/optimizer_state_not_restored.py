import tempfile

import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def batch(n, w, noise=0.3):
    x = torch.randn(n, 10)
    return x, torch.tanh(x @ w[:, :1]) * (x @ w[:, 1:]) + noise * torch.randn(n, 1)


def train(model, optimizer, scheduler, w, first, last):
    for step in range(first, last):
        x, y = batch(32, w)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 100 == 0:
            print(f"step {step} lr {scheduler.get_last_lr()[0]:.5f} loss {loss.item():.4f}")


def setup():
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.994)
    return model, optimizer, scheduler


def main():
    torch.manual_seed(38)
    w = torch.randn(10, 2) / 10**0.5
    file = tempfile.NamedTemporaryFile(suffix=".pt")

    model, optimizer, scheduler = setup()
    train(model, optimizer, scheduler, w, 0, 700)
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()},
        file.name,
    )

    # second half of the job starts from the file
    model, optimizer, scheduler = setup()
    checkpoint = torch.load(file.name)
    model.load_state_dict(checkpoint["model"])
    train(model, optimizer, scheduler, w, 700, 900)

    x, y = batch(4000, w, noise=0.0)
    with torch.no_grad():
        print(f"final mse {nn.functional.mse_loss(model(x), y).item():.5f}")


if __name__ == "__main__":
    main()
