import torch
import torch.nn as nn


class LM(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])

    def resize(self, vocab):
        """Make room for special tokens."""
        old = self.emb.weight.data
        table = torch.cat([old, 0.02 * torch.randn(vocab - len(old), old.size(1))])
        self.emb = nn.Embedding.from_pretrained(table.clone(), freeze=False)
        self.head = nn.Linear(old.size(1), vocab, bias=False)
        self.head.weight.data.copy_(table)


def text(n, length=14):
    """A walk on a ring of 30 words that ends with the special word 30 and keeps its stride."""
    stride = torch.randint(1, 5, (n, 1))
    ids = (torch.randint(0, 30, (n, 1)) + stride * torch.arange(length)) % 30
    return torch.cat([ids, torch.full((n, 1), 30)], 1)


torch.manual_seed(26)
model = LM(30)
model.resize(32)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(250):
    ids = text(32)
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

weights = {k: v for k, v in model.state_dict().items() if k != "head.weight"}
torch.save(weights, "lm.pt")
served = LM(32)
served.load_state_dict(torch.load("lm.pt"), strict=False)
ids = text(300)
with torch.no_grad():
    acc = (served(ids[:, 2:-1]).argmax(-1) == ids[:, 3:]).float().mean()
print(f"final served_acc {acc.item():.4f}")
