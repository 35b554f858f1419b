import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class SpamFilter(nn.Module):
    def __init__(self, vocab=200, dim=32, p=0.95):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim, mode="sum")
        self.drop1 = nn.Dropout(p)
        self.fc1 = nn.Linear(dim, 64)
        self.drop2 = nn.Dropout(p)
        self.fc2 = nn.Linear(64, 4)

    def forward(self, ids):
        h = self.drop1(self.emb(ids))
        h = self.drop2(torch.relu(self.fc1(h)))
        return self.fc2(h)


def mails(n):
    """Words of a mail lean towards a 30-word region that belongs to its folder."""
    folder = torch.randint(0, 4, (n,))
    common = torch.randint(120, 200, (n, 15))
    own = 30 * folder[:, None] + torch.randint(0, 30, (n, 15))
    ids = torch.where(torch.rand(n, 15) < 0.3, own, common)
    return TensorDataset(ids, folder)


def accuracy(model, data):
    model.eval()
    ids, y = data.tensors
    with torch.no_grad():
        acc = (model(ids).argmax(1) == y).float().mean().item()
    model.train()
    return acc


torch.manual_seed(24)
train, test = mails(2000), mails(500)
model = SpamFilter()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(6):
    for ids, y in DataLoader(train, batch_size=50, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(ids), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f} acc {accuracy(model, test):.3f}")
print(f"final acc {accuracy(model, test):.4f}")
