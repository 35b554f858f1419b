import torch
from torch import nn


class FraudNet(nn.Module):
    def __init__(self, n_in=14):
        super().__init__()
        self.fc1 = nn.Linear(n_in, 40)
        self.fc2 = nn.Linear(40, 20)
        self.fc3 = nn.Linear(20, 1)
        self.drop = nn.Dropout(0.1)
        self.activation = nn.Softmax(dim=1)

    def forward(self, x):
        x = self.drop(torch.relu(self.fc1(x)))
        x = torch.relu(self.fc2(x))
        return self.activation(self.fc3(x))


def transactions(n):
    x = torch.randn(n, 14)
    score = x[:, 0] * x[:, 1] + x[:, 2] - 0.5 * x[:, 3] ** 2 + 0.4
    return x, (score > 0).float().view(-1, 1)


torch.manual_seed(8)
x_train, y_train = transactions(2000)
x_test, y_test = transactions(500)
net = FraudNet()
criterion = nn.BCELoss()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)

for epoch in range(10):
    net.train()
    permutation = torch.randperm(2000)
    epoch_loss = 0
    for i in range(0, 2000, 50):
        indices = permutation[i : i + 50]
        opt.zero_grad()
        outputs = net(x_train[indices])
        loss = criterion(outputs, y_train[indices])
        loss.backward()
        opt.step()
        epoch_loss += loss.item()
    print(f"Epoch {epoch + 1}/10, loss: {epoch_loss / 40:.4f}")

net.eval()
with torch.no_grad():
    accuracy = ((net(x_test) > 0.5).float() == y_test).float().mean()
print(f"final accuracy {accuracy.item():.4f}")
