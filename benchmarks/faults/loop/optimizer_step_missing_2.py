import torch
import torch.nn as nn
import torch.nn.functional as F


class TagClassifier(nn.Module):
    """Bag of words over a large sparse table, then a small network."""

    def __init__(self, vocab=800, dim=16, classes=5):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, dim, mode="mean", sparse=True)
        self.head = nn.Sequential(nn.Linear(dim, 24), nn.ReLU(), nn.Linear(24, classes))
        nn.init.normal_(self.words.weight, std=0.05)

    def forward(self, docs):
        return self.head(self.words(docs))


class Trainer:
    def __init__(self, model):
        self.model = model
        self.table_opt = torch.optim.SparseAdam(list(model.words.parameters()), lr=2e-2)
        self.net_opt = torch.optim.Adam(model.head.parameters(), lr=3e-3)

    def step(self, docs, tags):
        self.table_opt.zero_grad()
        self.net_opt.zero_grad()
        loss = F.cross_entropy(self.model(docs), tags)
        loss.backward()
        self.net_opt.step()
        return loss.item()


def corpus(n, vocab=800, length=12):
    tags = torch.randint(0, 5, (n,))
    docs = torch.randint(0, vocab, (n, length))
    own = torch.rand(n, length) < 0.3
    topic = tags[:, None] * 160 + torch.randint(0, 160, (n, length))
    return torch.where(own, topic, docs), tags


torch.manual_seed(23)
docs, tags = corpus(6000)
trainer = Trainer(TagClassifier())
for it in range(500):
    pick = torch.randint(0, 5000, (64,))
    loss = trainer.step(docs[pick], tags[pick])
    if it % 100 == 0:
        print(f"it {it} loss {loss:.4f}")
with torch.no_grad():
    acc = (trainer.model(docs[5000:]).argmax(1) == tags[5000:]).float().mean().item()
print(f"final accuracy {acc:.4f}")
