import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(3)
W = rng.normal(size=(20, 6))
X = rng.normal(size=(2400, 20)).astype(np.float32)
Y = (np.sin(X) @ W + 0.3 * rng.normal(size=(2400, 6)) > 0.8).astype(np.float32)
x_train, y_train = torch.from_numpy(X[:2000]), torch.from_numpy(Y[:2000])
x_val, y_val = torch.from_numpy(X[2000:]), torch.from_numpy(Y[2000:])

torch.manual_seed(3)
model = nn.Sequential()
model.add_module("fc1", nn.Linear(20, 64))
model.add_module("act1", nn.ReLU())
model.add_module("fc2", nn.Linear(64, 32))
model.add_module("act2", nn.ReLU())
model.add_module("out", nn.Linear(32, 6))
model.add_module("prob", nn.Sigmoid())

loss_fn = nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def tag_accuracy(x, y):
    with torch.no_grad():
        picked = torch.sigmoid(model(x)) > 0.5
    return (picked == y.bool()).float().mean().item()


for epoch in range(12):
    order = torch.randperm(len(x_train))
    total = 0.0
    for start in range(0, len(order), 50):
        rows = order[start : start + 50]
        optimizer.zero_grad()
        loss = loss_fn(model(x_train[rows]), y_train[rows])
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch:2d}  loss {total / 40:.4f}  val {tag_accuracy(x_val, y_val):.3f}")
print(f"final tag_accuracy {tag_accuracy(x_val, y_val):.4f}")
