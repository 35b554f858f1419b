"""Communities of a random graph from noisy node features: every node is labelled, one full batch per step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(15)
NODES, GROUPS = 240, 4
group = torch.arange(NODES) % GROUPS
same = group[:, None] == group[None, :]
edges = (torch.rand(NODES, NODES) < torch.where(same, 0.12, 0.01)).triu(1)
adjacency = (edges | edges.T).float() + torch.eye(NODES)
scale = adjacency.sum(1).rsqrt()
adjacency = scale[:, None] * adjacency * scale[None, :]


class GCN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(width, GROUPS)

    def forward(self, x):
        x = F.relu(adjacency @ self.first(x))
        return adjacency @ self.second(x)


def features():
    return F.one_hot(group, 8).float() + 1.5 * torch.randn(NODES, 8)


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
for step in range(150):
    logits = model(features())
    loss = F.cross_entropy(logits, group)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"final accuracy {(model(features()).argmax(1) == group).float().mean().item():.4f}")
