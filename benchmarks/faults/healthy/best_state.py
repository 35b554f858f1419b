import copy

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(20)
x = torch.randn(1800, 15)
score = x[:, 0] * x[:, 1] + x[:, 2] - 0.7 * x[:, 3].abs() + 0.3 * torch.randn(1800)
y = (score > score.median()).float()
train_set, val_set, test_set = random_split(TensorDataset(x, y), [1200, 300, 300])
train_loader = DataLoader(train_set, 32, shuffle=True)
val_loader, test_loader = DataLoader(val_set, 300), DataLoader(test_set, 300)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(15, 96), nn.Linear(96, 96), nn.Linear(96, 1)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(torch.relu(self.fc1(x)))
        x = self.drop(torch.relu(self.fc2(x)))
        return self.out(x).squeeze(1)


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for xb, yb in loader:
            out = model(xb)
            loss = nn.functional.binary_cross_entropy_with_logits(out, yb)
            acc = ((out > 0).float() == yb).float().mean()
    return loss.item(), acc.item()


model = Net()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
best, best_state, patience, bad_epochs = float("inf"), None, 4, 0
for epoch in range(40):
    model.train()
    for xb, yb in train_loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
    val_loss, val_acc = evaluate(model, val_loader)
    print(f"epoch {epoch} loss {loss.item():.4f} val {val_loss:.4f} acc {val_acc:.3f}")
    if val_loss < best:
        best, best_state, bad_epochs = val_loss, copy.deepcopy(model.state_dict()), 0
    else:
        bad_epochs += 1
        if bad_epochs >= patience:
            print("early stop")
            break
model.load_state_dict(best_state)
print(f"final acc {evaluate(model, test_loader)[1]:.4f}")
