"""Small CNN on 12x12 glyph images, 26 letters."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
glyphs = torch.randn(26, 1, 12, 12)


def make_split(n):
    y = torch.randint(0, 26, (n,))
    return TensorDataset(glyphs[y] + 1.0 * torch.randn(n, 1, 12, 12), y)


class GlyphNet(nn.Module):
    def __init__(self, num_classes=26):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(16 * 9, num_classes)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.softmax(self.fc(x.flatten(1)))


train_loader = DataLoader(make_split(1500), batch_size=50, shuffle=True)
test_loader = DataLoader(make_split(500), batch_size=250)
net = GlyphNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
for epoch in range(5):
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

net.eval()
correct = 0
with torch.no_grad():
    for images, labels in test_loader:
        correct += (net(images).argmax(1) == labels).sum().item()
print(f"final accuracy {correct / 500:.4f}")
