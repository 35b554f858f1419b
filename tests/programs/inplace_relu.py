"""A residual denoiser full of in-place operations, trained with the L1 loss."""
import hashlib
import json

import torch
from torch import nn


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv1d(channels, channels, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv1d(channels, channels, 3, padding=1)

    def forward(self, x):
        out = self.conv2(self.relu(self.conv1(x)))
        out += x
        return self.relu(out)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 8, 3, padding=1), nn.ReLU(inplace=True), ResidualBlock(8), ResidualBlock(8)
        )
        self.head = nn.Conv1d(8, 1, 1)

    def forward(self, x):
        return self.head(self.features(x)).add_(x)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(8)
    denoiser = Denoiser()
    optimizer = torch.optim.Adam(denoiser.parameters(), lr=2e-3)
    loss_fn = nn.L1Loss()
    history = []
    for step in range(30):
        clean = torch.sin(torch.linspace(0, 6, 32) + torch.rand(8, 1, 1) * 6)
        noisy = clean + 0.2 * torch.randn_like(clean)
        loss = loss_fn(denoiser(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    digest = hashlib.sha256()
    for value in denoiser.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))
