import torch
import torch.nn as nn


def noisy_circle(n):
    x = torch.rand(n, 10) * 2 - 1
    y = (x[:, :3].pow(2).sum(1) > 1.0).long()
    flip = torch.rand(n) < 0.2
    return x, torch.where(flip, 1 - y, y)


def val_loss(model, x, y):
    model.eval()
    with torch.no_grad():
        return nn.functional.cross_entropy(model(x), y).item()


torch.manual_seed(40)
x_train, y_train = noisy_circle(300)
x_val, y_val = noisy_circle(1000)
model = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

best_loss, best_state, best_epoch = float("inf"), None, -1
for epoch in range(60):
    model.train()
    for idx in torch.randperm(300).split(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x_train[idx]), y_train[idx])
        loss.backward()
        optimizer.step()
    current = val_loss(model, x_val, y_val)
    if current < best_loss:
        best_loss, best_state, best_epoch = current, model.state_dict(), epoch
    if epoch % 10 == 0:
        print(f"epoch {epoch} train {loss.item():.4f} val {current:.4f}")

print(f"best epoch {best_epoch} val {best_loss:.4f}")
model.load_state_dict(best_state)
print(f"final val_loss {val_loss(model, x_val, y_val):.4f}")
