import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Activity(nn.Module):
    """LSTM over accelerometer traces, last state to class."""

    def __init__(self, channels=3, hidden=32, classes=4):
        super().__init__()
        self.lstm = nn.LSTM(channels, hidden)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1, :])


def traces(n, steps=20):
    y = torch.randint(0, 4, (n,))
    t = torch.arange(steps).float()
    speed = (0.25 + 0.3 * y.float())[:, None, None]
    phase = 6.28 * torch.rand(n, 1, 3)
    x = torch.sin(speed * t[None, :, None] + phase) + 0.3 * torch.randn(n, steps, 3)
    return x, y


def main():
    torch.manual_seed(10)
    loader = DataLoader(TensorDataset(*traces(1200)), batch_size=40, shuffle=True)
    x_test, y_test = traces(400)
    model = Activity()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(8):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        acc = (model(x_test).argmax(1) == y_test).float().mean().item()
    print(f"final acc {acc:.4f}")


if __name__ == "__main__":
    main()
