import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, dim=40, classes=4):
        super().__init__()
        self.fc1 = nn.Linear(dim, 256)
        self.drop1 = nn.Dropout(0.6)
        self.fc2 = nn.Linear(256, 256)
        self.drop2 = nn.Dropout(0.6)
        self.fc3 = nn.Linear(256, classes)

    def forward(self, x):
        x = self.drop1(torch.relu(self.fc1(x)))
        x = self.drop2(torch.relu(self.fc2(x)))
        return self.fc3(x)


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        logits = model(x)
    return nn.functional.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(25)
    w = torch.randn(40, 4) * 0.35
    x = torch.randn(1240, 40)
    y = torch.distributions.Categorical(logits=x @ w).sample()
    loader = DataLoader(TensorDataset(x[:240], y[:240]), batch_size=20, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for epoch in range(40):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
        val_loss, val_acc = evaluate(model, x[240:], y[240:])
        if epoch % 5 == 0:
            print(f"epoch {epoch} train {loss.item():.4f} val {val_loss:.4f} acc {val_acc:.3f}")
    print(f"final val_loss {val_loss:.4f}")


if __name__ == "__main__":
    main()
