import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(3)
torch.manual_seed(3)
codes = rng.normal(size=(1500, 3))
mixing = rng.normal(size=(3, 24))
signals = np.tanh(codes @ mixing) + 0.02 * rng.normal(size=(1500, 24))
signals = torch.tensor(signals, dtype=torch.float32)


class AutoEncoder(nn.Module):
    def __init__(self, dim, latent):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.GELU(), nn.Linear(48, dim))

    def forward(self, x):
        return self.decoder(self.encoder(x))


model = AutoEncoder(24, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-7)
loss_fn = nn.MSELoss()
for epoch in range(20):
    order = rng.permutation(len(signals))
    losses = []
    for start in range(0, len(order), 50):
        batch = signals[order[start : start + 50]]
        loss = loss_fn(model(batch), batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch:2d} loss {np.mean(losses):.4f}")
print(f"final mse {np.mean(losses):.5f}")
