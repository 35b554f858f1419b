import torch
from torch import nn


def ring_dataset(n):
    radius = torch.tensor([0.4, 1.0, 1.6])
    y = torch.randint(0, 3, (n,))
    phi = torch.rand(n) * 2 * torch.pi
    r = radius[y] + 0.12 * torch.randn(n)
    return torch.stack([r * phi.cos(), r * phi.sin()], 1), y


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def training_step(self, x, y):
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.zero_grad()
        self.optimizer.step()
        return loss.item()

    def fit(self, x, y, epochs):
        for epoch in range(epochs):
            losses = [self.training_step(x[i], y[i]) for i in torch.randperm(len(x)).split(40)]
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")

    def score(self, x, y):
        with torch.no_grad():
            return (self.model(x).argmax(1) == y).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    x, y = ring_dataset(1200)
    trainer = Trainer(nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)), 5e-3)
    trainer.fit(x[:1000], y[:1000], epochs=10)
    print(f"final acc {trainer.score(x[1000:], y[1000:]):.4f}")
