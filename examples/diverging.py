"""A training run that fails: the learning rate is far too high, and the loss turns into NaN within a few steps.

Run it as it is:          python examples/diverging.py
Run it under the debugger: neural debug examples/diverging.py
"""

import torch
from torch import nn


class Regressor(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1024, 16)
    targets = inputs[:, :1] * 3 + inputs[:, 1:2].sin() + 0.1 * torch.randn(1024, 1)

    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    for step in range(60):
        batch = torch.randint(0, 1024, (64,))
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3d}  loss {loss.item():.4g}")


if __name__ == "__main__":
    main()
