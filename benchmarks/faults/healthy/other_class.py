"""Rare events in a stream: four kinds that differ clearly, and ordinary traffic that looks a little like each."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(19)
KINDS = 5


def stream(n):
    kind = torch.multinomial(torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1]), n, replacement=True)
    mean = 2.0 * torch.eye(KINDS)
    mean[0] = 0
    return mean[kind].repeat(1, 2) * 0.9 + torch.randn(n, 2 * KINDS), kind


x, y = stream(6000)
x_test, y_test = stream(2000)
model = nn.Sequential(nn.Linear(2 * KINDS, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, KINDS))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
for epoch in range(8):
    model.train()
    for rows, kind in loader:
        loss = nn.functional.cross_entropy(model(rows), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
    print(f"epoch {epoch} accuracy {accuracy:.3f}")
print(f"final accuracy {accuracy:.4f}")
