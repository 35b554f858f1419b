import os
import tempfile

import torch
from torch import nn

torch.manual_seed(44)
basis = torch.randn(4, 30)


def observe(n):
    z = torch.randn(n, 4)
    return torch.sin(z @ basis) + 0.1 * torch.randn(n, 30), z


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(30, 64)
        self.fc2 = nn.Linear(64, 8)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Pretrainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.regressor = nn.Linear(8, 4)

    def forward(self, x):
        return self.regressor(self.encoder(x))


def pretrain(path):
    model = Pretrainer()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(500):
        x, z = observe(64)
        loss = nn.functional.mse_loss(model(x), z)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(f"pretrain step {step} loss {loss.item():.4f}")
    torch.save(model.state_dict(), path)


def finetune(path):
    encoder = Encoder()
    encoder.load_state_dict(torch.load(path), strict=False)
    head = nn.Linear(8, 2)
    opt = torch.optim.Adam(head.parameters(), lr=1e-2)
    x, z = observe(60)
    y = (z[:, 0] + z[:, 1] > 0).long()
    with torch.no_grad():
        features = encoder(x)
    for step in range(150):
        loss = nn.functional.cross_entropy(head(features), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            print(f"finetune step {step} loss {loss.item():.4f}")
    x, z = observe(2000)
    with torch.no_grad():
        return (head(encoder(x)).argmax(1) == (z[:, 0] + z[:, 1] > 0).long()).float().mean().item()


if __name__ == "__main__":
    checkpoint = os.path.join(tempfile.gettempdir(), f"encoder_{os.getpid()}.pt")
    pretrain(checkpoint)
    accuracy = finetune(checkpoint)
    os.remove(checkpoint)
    print(f"final acc {accuracy:.4f}")
