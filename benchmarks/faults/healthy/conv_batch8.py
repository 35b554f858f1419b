import torch
import torch.nn as nn


def conv_bn(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1 = conv_bn(3, 12)
        self.pool = nn.MaxPool2d(2)
        self.stage2 = conv_bn(12, 24)
        self.classifier = nn.Linear(24 * 16, 3)

    def forward(self, x):
        x = self.pool(self.stage1(x))
        x = self.pool(self.stage2(x))
        return self.classifier(x.flatten(1))


def blobs(n):
    """A bright square in one of three colours' channel order on a noisy background."""
    y = torch.randint(0, 3, (n,))
    img = 0.6 * torch.randn(n, 3, 16, 16)
    for i in range(n):
        r, c = torch.randint(0, 11, (2,)).tolist()
        img[i, y[i], r : r + 5, c : c + 5] += 1.2
        img[i, (y[i] + 1) % 3, r : r + 5, c : c + 5] -= 0.8
    return img, y


torch.manual_seed(18)
x_tr, y_tr = blobs(320)
x_te, y_te = blobs(200)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[4, 6], gamma=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(8):
    net.train()
    total = 0.0
    for idx in torch.randperm(320).split(8):
        optimizer.zero_grad()
        loss = criterion(net(x_tr[idx]), y_tr[idx])
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step()
    print(f"epoch {epoch} loss {total / 40:.4f} lr {scheduler.get_last_lr()[0]:g}")
net.eval()
with torch.no_grad():
    print(f"final acc {(net(x_te).argmax(1) == y_te).float().mean().item():.4f}")
