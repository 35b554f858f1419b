import random

import torch
import torch.nn as nn

PAD, VOCAB, MAX_LEN = 0, 20, 60


def corpus(n):
    """Sentences of 3 to 8 tokens; a token's tag is its class, raised by one after an even token."""
    pairs = []
    for _ in range(n):
        ids = [random.randint(1, VOCAB - 1) for _ in range(random.randint(3, 8))]
        tags = [1 + (t + (i > 0 and ids[i - 1] % 2 == 0)) % 6 for i, t in enumerate(ids)]
        pairs.append((ids, tags))
    return pairs


def collate(pairs):
    ids = torch.full((len(pairs), MAX_LEN), PAD)
    tags = torch.full((len(pairs), MAX_LEN), PAD)
    for row, (a, b) in enumerate(pairs):
        ids[row, : len(a)] = torch.tensor(a)
        tags[row, : len(b)] = torch.tensor(b)
    return ids, tags


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32, padding_idx=PAD)
        self.conv = nn.Conv1d(32, 64, 3, padding=1)
        self.out = nn.Linear(64, 7)

    def forward(self, ids):
        h = torch.relu(self.conv(self.embed(ids).transpose(1, 2)))
        return self.out(h.transpose(1, 2))


random.seed(5)
torch.manual_seed(5)
train, test = corpus(1000), corpus(200)
model = Tagger()
criterion = nn.CrossEntropyLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(6):
    random.shuffle(train)
    for i in range(0, len(train), 40):
        ids, tags = collate(train[i : i + 40])
        loss = criterion(model(ids).flatten(0, 1), tags.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
ids, tags = collate(test)
with torch.no_grad():
    right = (model(ids).argmax(-1) == tags)[ids != PAD]
print(f"final tag_acc {right.float().mean().item():.4f}")
