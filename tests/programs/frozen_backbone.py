"""Transfer learning: a frozen backbone in eval mode, a fresh head, and an optimizer that knows only the head."""
import hashlib
import json

import torch
from torch import nn, optim


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(32, 100)

    def forward(self, x):
        return self.fc(self.pool(torch.relu(self.bn(self.conv(x)))).flatten(1))


def finetune(model, criterion, optimizer, scheduler, steps):
    history = []
    patterns = torch.randn(2, 1, 8, 8)
    model.train()
    model.bn.eval()
    for _ in range(steps):
        labels = torch.randint(0, 2, (12,))
        inputs = patterns[labels] + 0.5 * torch.randn(12, 1, 8, 8)
        optimizer.zero_grad()
        with torch.set_grad_enabled(True):
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
        scheduler.step()
        history.append(loss.item())
    return history


def main():
    torch.set_num_threads(1)
    torch.manual_seed(9)
    model_conv = SmallNet()
    for param in model_conv.parameters():
        param.requires_grad = False
    model_conv.fc = nn.Linear(model_conv.fc.in_features, 2)
    optimizer_conv = optim.SGD(model_conv.fc.parameters(), lr=0.05, momentum=0.9)
    exp_lr_scheduler = optim.lr_scheduler.StepLR(optimizer_conv, step_size=7, gamma=0.1)
    history = finetune(model_conv, nn.CrossEntropyLoss(), optimizer_conv, exp_lr_scheduler, steps=20)

    digest = hashlib.sha256()
    for value in model_conv.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
