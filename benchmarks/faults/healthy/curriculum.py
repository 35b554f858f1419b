import torch
import torch.nn as nn

MAXLEN = 12


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 12)
        self.gru = nn.GRU(12, 48, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, ids):
        _, h = self.gru(self.emb(ids))
        return self.head(h[-1])


def make(n, length):
    """Which digit came first?"""
    ids = torch.randint(0, 10, (n, length))
    return ids, ids[:, 0]


def accuracy(model, length, n=400):
    x, y = make(n, length)
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(27)
    model = Reader()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for length in range(1, MAXLEN + 1):
        for _ in range(45):
            x, y = make(48, length)
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        print(f"length {length} loss {loss.item():.4f}")
    print(f"final acc {accuracy(model, MAXLEN):.4f}")


if __name__ == "__main__":
    main()
