import torch
from torch import nn
from torch.nn.functional import cross_entropy, softmax


class Head(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.proj = nn.Linear(width, classes)

    def forward(self, h):
        return softmax(self.proj(self.norm(h)), dim=-1)


class Tagger(nn.Module):
    def __init__(self, vocab=30, width=24, classes=15):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = Head(width, classes)

    def forward(self, ids):
        return self.head(self.gru(self.emb(ids))[0])


def sentences(n, gen):
    """A tag is decided by the token and the one before it."""
    ids = torch.randint(0, 30, (n, 12), generator=gen)
    prev = torch.cat([torch.zeros(n, 1, dtype=torch.long), ids[:, :-1]], 1)
    return ids, (ids // 2 + 5 * (prev % 3)) % 15


def main():
    torch.manual_seed(7)
    gen = torch.Generator().manual_seed(8)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(300):
        ids, tags = sentences(32, gen)
        out = model(ids)
        loss = cross_entropy(out.reshape(-1, 15), tags.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 60 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    ids, tags = sentences(500, gen)
    with torch.no_grad():
        nll = cross_entropy(model(ids).reshape(-1, 15), tags.reshape(-1))
    print(f"final nll {nll.item():.4f}")


if __name__ == "__main__":
    main()
