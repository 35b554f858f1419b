import torch
import torch.nn as nn

HIDDEN = 2

torch.manual_seed(30)
grid = 2 * torch.rand(2000, 2) - 1
height = torch.sin(4 * grid[:, 0]) * torch.cos(4 * grid[:, 1])


class Surface(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.a = nn.Linear(2, hidden)
        self.b = nn.Linear(hidden, hidden)
        self.c = nn.Linear(hidden, 1)

    def forward(self, x):
        x = torch.tanh(self.a(x))
        x = torch.tanh(self.b(x))
        return self.c(x)[:, 0]


model = Surface(HIDDEN)
print(sum(p.numel() for p in model.parameters()), "parameters")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=4)
for epoch in range(25):
    total = 0.0
    for rows in torch.randperm(2000).split(50):
        loss = (model(grid[rows]) - height[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step(total)
    if epoch % 5 == 0:
        print(f"epoch {epoch} loss {total / 40:.4f}")
with torch.no_grad():
    print(f"final mse {(model(grid) - height).square().mean().item():.5f}")
