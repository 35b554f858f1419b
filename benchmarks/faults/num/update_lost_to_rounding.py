import torch
import torch.nn as nn

torch.manual_seed(90)
true_weight = 0.22 * torch.randn(32, 3)


def batch(n):
    x = torch.randn(n, 32)
    score = x @ true_weight + 0.3 * torch.randn(n, 3)
    return x, score


model = nn.Linear(32, 3).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
dtype = model.weight.dtype


def evaluate(n=2000):
    x, y = batch(n)
    with torch.no_grad():
        pred = model(x.to(dtype)).float()
    return (pred - y).pow(2).mean().item()


for step in range(2000):
    x, y = batch(64)
    pred = model(x.to(dtype))
    loss = (pred.float() - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 250 == 0:
        print(f"step {step} loss {loss.item():.5f}")
print(f"final mse {evaluate():.5f}")
