"""Trains, then fails inside a function."""
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps):
    for step in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1)).backward()
        optimizer.step()
        if step == 6:
            raise RuntimeError("lost the connection to the data")


if __name__ == "__main__":
    train(20)
