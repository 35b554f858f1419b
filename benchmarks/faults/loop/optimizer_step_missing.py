import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc = nn.Linear(16 * 4, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def train(model, x, y, optimizer, epoch, batch_size=64):
    model.train()
    for batch_idx, idx in enumerate(torch.randperm(len(x)).split(batch_size)):
        optimizer.zero_grad()
        output = model(x[idx])
        loss = F.cross_entropy(output, y[idx])
        loss.backward()
        if batch_idx % 10 == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * batch_size}/{len(x)}] Loss: {loss.item():.6f}")


@torch.no_grad()
def test(model, x, y):
    model.eval()
    pred = model(x).argmax(dim=1)
    return pred.eq(y).float().mean().item()


def main():
    torch.manual_seed(1)
    shapes = torch.randn(5, 1, 14, 14)
    y = torch.randint(0, 5, (1500,))
    x = shapes[y] + torch.randn(1500, 1, 14, 14)
    model = ConvNet()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for epoch in range(1, 5):
        train(model, x[:1200], y[:1200], optimizer, epoch)
        accuracy = test(model, x[1200:], y[1200:])
        print(f"Test accuracy: {accuracy:.3f}")
    print(f"final acc {accuracy:.4f}")


if __name__ == "__main__":
    main()
