import tempfile

import torch
from torch import nn

torch.manual_seed(44)
basis = torch.randn(4, 30)


def observe(n):
    z = torch.randn(n, 4)
    return torch.sin(z @ basis) + 0.1 * torch.randn(n, 30), z


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(30, 64)
        self.fc2 = nn.Linear(64, 8)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.encoder(x))


def fit(model, optimizer, get_batch, loss_fn, steps):
    for step in range(steps):
        x, y = get_batch()
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")


checkpoint = tempfile.NamedTemporaryFile(suffix=".pt")
pretrained = Regressor()
fit(pretrained, torch.optim.Adam(pretrained.parameters(), lr=3e-3), lambda: observe(64), nn.MSELoss(), 500)
torch.save(pretrained.state_dict(), checkpoint.name)

encoder, head = Encoder(), nn.Linear(8, 2)
encoder.load_state_dict(torch.load(checkpoint.name), strict=False)
x, z = observe(2060)
y = (z[:, 0] + z[:, 1] > 0).long()
with torch.no_grad():
    features = encoder(x)
fit(head, torch.optim.Adam(head.parameters(), lr=1e-2), lambda: (features[:60], y[:60]), nn.CrossEntropyLoss(), 200)
with torch.no_grad():
    accuracy = (head(features[60:]).argmax(1) == y[60:]).float().mean().item()
print(f"final acc {accuracy:.4f}")
