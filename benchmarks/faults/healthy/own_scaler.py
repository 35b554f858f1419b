import torch
import torch.nn as nn
import torch.nn.functional as F


class LossScaler:
    """Dynamic scale for half precision: halve on overflow, double after a while without."""

    def __init__(self, scale=2.0**28, patience=100):
        self.scale, self.patience, self.good, self.skipped = scale, patience, 0, 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self, optimizer):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if not all(bool(torch.isfinite(p.grad).all()) for p in params):
            self.scale, self.good, self.skipped = self.scale / 2, 0, self.skipped + 1
            return
        for p in params:
            p.grad.div_(self.scale)
        optimizer.step()
        self.good += 1
        if self.good % self.patience == 0:
            self.scale *= 2


torch.manual_seed(9)
w = torch.randn(12, 3)
model = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 3))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = LossScaler()
for step in range(300):
    x = torch.randn(64, 12)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = F.mse_loss(out.float(), torch.tanh(x @ w))
    opt.zero_grad()
    scaler.backward(loss)
    scaler.step(opt)
    if step % 60 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.scale:.0f} skipped {scaler.skipped}")
x = torch.randn(1000, 12)
with torch.no_grad():
    print(f"final mse {F.mse_loss(model(x), torch.tanh(x @ w)).item():.4f}")
