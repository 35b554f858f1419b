"""A model inside a wrapper called `module`, with its checkpoint written and read back without the prefix."""
import hashlib
import io
import json

import torch
from torch import nn


class Wrapped(nn.Module):
    """Splits the batch in two, as a data-parallel wrapper would."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return torch.cat([self.module(part) for part in x.chunk(2)])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(19)
    model = Wrapped(nn.Sequential(nn.Linear(6, 16), nn.ELU(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    history = []
    for step in range(20):
        x = torch.randn(12, 6)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if step == 9:
            checkpoint = io.BytesIO()
            torch.save(model.module.state_dict(), checkpoint)
            checkpoint.seek(0)
            model.module.load_state_dict(torch.load(checkpoint))

    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
