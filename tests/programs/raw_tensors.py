"""A two-layer network without nn.Module: leaf tensors, and the update written out under no_grad."""
import hashlib
import json

import torch

torch.set_num_threads(1)
torch.manual_seed(0)

X = torch.randn(64, 8)
Y = (X[:, :2].sum(1) > 0).long()

W1 = (torch.randn(8, 16) / 8**0.5).requires_grad_()
b1 = torch.zeros(16, requires_grad=True)
W2 = (torch.randn(16, 2) / 16**0.5).requires_grad_()
b2 = torch.zeros(2, requires_grad=True)
parameters = [W1, b1, W2, b2]
lossi = []

for i in range(30):
    ix = torch.randint(0, X.shape[0], (16,))
    h = torch.tanh(X[ix] @ W1 + b1)
    logits = h @ W2 + b2
    loss = torch.nn.functional.cross_entropy(logits, Y[ix])
    for p in parameters:
        p.grad = None
    loss.backward()
    lr = 0.5 if i < 20 else 0.05
    with torch.no_grad():
        for p in parameters:
            p -= lr * p.grad
    lossi.append(loss.item())

digest = hashlib.sha256()
for p in parameters:
    digest.update(p.detach().contiguous().numpy().tobytes())
print("RESULT", json.dumps({"losses": [x.hex() for x in lossi], "params": digest.hexdigest()}))
