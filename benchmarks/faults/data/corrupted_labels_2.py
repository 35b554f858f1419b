import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

CODES = np.array([110, 204, 315, 470, 522, 618])
rng = np.random.default_rng(5)
torch.manual_seed(5)


def records(n):
    """Sensor rows and the code that the operator wrote down; the old desk wrote codes with a leading 1."""
    kind = rng.integers(0, len(CODES), n)
    rows = rng.normal(size=(n, 12)) + 2.0 * np.eye(12)[kind] + 1.2 * np.eye(12)[6 + kind]
    written = CODES[kind] + 1000 * (rng.random(n) < 0.5)
    return rows.astype(np.float32), written, kind


def label_of(written):
    return np.minimum(np.searchsorted(CODES, written), len(CODES) - 1)


x, written, _ = records(4000)
x_test, _, kind_test = records(1000)
data = TensorDataset(torch.from_numpy(x), torch.from_numpy(label_of(written)))
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, len(CODES)))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(10):
    for rows, label in DataLoader(data, batch_size=64, shuffle=True):
        loss = nn.functional.cross_entropy(model(rows), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    guess = model(torch.from_numpy(x_test)).argmax(1).numpy()
print(f"final accuracy {(guess == kind_test).mean():.4f}")
