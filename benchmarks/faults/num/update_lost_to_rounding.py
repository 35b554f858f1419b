import torch
import torch.nn as nn

torch.manual_seed(90)
teacher = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 4))
for p in teacher.parameters():
    p.requires_grad_(False)
    p.mul_(2)

student = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(torch.bfloat16)
optimizer = torch.optim.Adam(student.parameters(), lr=2e-4)


def batch(n):
    x = torch.randn(n, 16)
    return x, teacher(x)


def relative_error(n=1000):
    x, y = batch(n)
    with torch.no_grad():
        pred = student(x.to(student[0].weight.dtype)).float()
    return ((pred - y).pow(2).mean() / y.pow(2).mean()).item()


for step in range(1000):
    x, y = batch(64)
    pred = student(x.to(student[0].weight.dtype))
    loss = (pred.float() - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 200 == 0:
        print(f"step {step} loss {loss.item():.5f}")
print(f"final relative_error {relative_error():.5f}")
