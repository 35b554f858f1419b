"""A small convolutional network on pictures of bars. `--keep-gradients` forgets to clear gradients."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pictures(count=768):
    """Bars that stand or lie, in noise."""
    labels = torch.randint(2, (count,))
    images = torch.rand(count, 1, 16, 16) * 120
    for image, label in zip(images, labels, strict=True):
        at = int(torch.randint(2, 14, ()))
        bar = image[0, :, at] if label else image[0, at, :]
        bar += 120
    return images, labels


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 2)

    def forward(self, x):
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def main():
    torch.manual_seed(0)
    images, labels = pictures()
    images = (images - images.mean()) / images.std()
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        for batch, targets in loader:
            if "--keep-gradients" not in sys.argv:
                optimizer.zero_grad()
            loss = criterion(model(batch), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
