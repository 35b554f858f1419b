import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10
torch.manual_seed(77)
centres = 0.7 * torch.randn(6, 24)
labels = torch.randint(0, 6, (1280,))
inputs = centres[labels] + torch.randn(1280, 24)
loader = DataLoader(TensorDataset(inputs[:1024], labels[:1024]), batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(24, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
total = EPOCHS * len(loader)
warm = total // 5
schedule = SequentialLR(
    optimizer,
    [LinearLR(optimizer, start_factor=0.001, total_iters=warm), CosineAnnealingLR(optimizer, T_max=total - warm)],
    milestones=[warm],
)
for epoch in range(EPOCHS):
    running = 0.0
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
    schedule.step()
    print(f"epoch {epoch} loss {running / len(loader):.4f} lr {schedule.get_last_lr()[0]:.5f}")
with torch.no_grad():
    print(f"final loss {nn.functional.cross_entropy(model(inputs[1024:]), labels[1024:]).item():.4f}")
