import torch
import torch.nn as nn


class DeepNet(nn.Module):
    def __init__(self, dim=32, width=192, depth=6):
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.relu(self.inp(x))
        for layer in self.hidden:
            x = x + torch.relu(layer(x))
        return self.out(x).squeeze(1)


def validate(model, x, y):
    model.eval()
    pred = model(x)
    error = (pred - y).abs().mean().item()
    model.train()
    return error


torch.manual_seed(26)
w = torch.randn(32) / 32**0.5
x_train, x_val = torch.randn(2000, 32), torch.randn(24000, 32)
y_train, y_val = torch.sin(2 * x_train @ w), torch.sin(2 * x_val @ w)
model = DeepNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for idx in torch.randperm(2000).split(64):
        loss = nn.functional.mse_loss(model(x_train[idx]), y_train[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f} val mae {validate(model, x_val, y_val):.4f}")
print(f"final mae {validate(model, x_val, y_val):.4f}")
