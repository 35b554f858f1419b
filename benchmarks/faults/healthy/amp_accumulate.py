import torch
from torch import nn

torch.manual_seed(24)
ACCUM = 4
DEVICE = "cpu"

proj = torch.randn(20, 12) / 20**0.5
readout = torch.randn(12, 5)
x = torch.randn(3200, 20)
y = (torch.relu(x @ proj) @ readout).argmax(1)
x_val, y_val = x[2800:], y[2800:]
x, y = x[:2800], y[:2800]

model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 5)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler(DEVICE)

for epoch in range(10):
    model.train()
    optimizer.zero_grad(set_to_none=True)
    for i, idx in enumerate(torch.randperm(len(x)).split(25)):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx]) / ACCUM
        scaler.scale(loss).backward()
        if (i + 1) % ACCUM == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        acc = (model(x_val).argmax(1) == y_val).float().mean().item()
    print(f"epoch {epoch} loss {loss.item() * ACCUM:.4f} val acc {acc:.4f} scale {scaler.get_scale():g}")
print(f"final acc {acc:.4f}")
