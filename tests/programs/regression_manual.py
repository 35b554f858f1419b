"""Polynomial regression with one linear layer and the update through param.data, until the loss is small enough."""
import hashlib
import json
from itertools import count

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)

POLY_DEGREE = 4
W_target = torch.randn(POLY_DEGREE, 1) * 2
b_target = torch.randn(1) * 2


def make_features(x):
    x = x.unsqueeze(1)
    return torch.cat([x**i for i in range(1, POLY_DEGREE + 1)], 1)


def get_batch(batch_size=32):
    x = make_features(torch.randn(batch_size).clamp(-1.5, 1.5))
    return x, x.mm(W_target) + b_target.item()


fc = torch.nn.Linear(W_target.size(0), 1)
history = []

for batch_idx in count(1):
    batch_x, batch_y = get_batch()
    fc.zero_grad()
    output = F.smooth_l1_loss(fc(batch_x), batch_y)
    loss = output.item()
    history.append(loss)
    output.backward()
    for param in fc.parameters():
        param.data.add_(-0.1 * param.grad)
    if loss < 1e-3 or batch_idx == 40:
        break

print(f"Loss: {loss:.6f} after {batch_idx} batches")
digest = hashlib.sha256()
for param in fc.parameters():
    digest.update(param.detach().contiguous().numpy().tobytes())
print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))
