import torch
import torch.nn as nn

torch.manual_seed(96)
x = torch.randn(4000, 16)
y = (torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] > 0).long()
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss(reduction="none")
journal = []


def log_step(step, losses, logits, labels):
    """Keep a per-sample and per-unit record of the step."""
    record = {"step": step}
    record["losses"] = [value.item() for value in losses]
    record["margins"] = [(row[label] - row[1 - label]).item() for row, label in zip(logits, labels, strict=True)]
    for name, p in net.named_parameters():
        record[name] = [(unit.norm().item(), grad.abs().max().item()) for unit, grad in zip(p, p.grad, strict=True)]
    journal.append(record)


for step in range(300):
    rows = torch.randint(0, 3600, (64,))
    logits = net(x[rows])
    losses = criterion(logits, y[rows])
    optimizer.zero_grad()
    losses.mean().backward()
    optimizer.step()
    log_step(step, losses, logits, y[rows])
    if step % 60 == 0:
        print(f"step {step} loss {sum(journal[-1]['losses']) / 64:.4f}")

with torch.no_grad():
    acc = (net(x[3600:]).argmax(1) == y[3600:]).float().mean().item()
print(f"final acc {acc:.4f}")
