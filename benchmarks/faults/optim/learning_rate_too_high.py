import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class SmallCNN(nn.Module):
    def __init__(self, n_classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(16 * 9, n_classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def make_images(n, prototypes):
    labels = torch.randint(0, len(prototypes), (n,))
    return prototypes[labels] + 0.8 * torch.randn(n, 1, 12, 12), labels


def main():
    torch.manual_seed(21)
    prototypes = torch.randn(4, 1, 12, 12)
    train = DataLoader(TensorDataset(*make_images(1600, prototypes)), batch_size=32, shuffle=True)
    x_test, y_test = make_images(400, prototypes)
    model = SmallCNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        total = 0.0
        for x, y in train:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(train):.4f}")
    model.eval()
    with torch.no_grad():
        acc = (model(x_test).argmax(1) == y_test).float().mean().item()
    print(f"final acc {acc:.4f}")


if __name__ == "__main__":
    main()
