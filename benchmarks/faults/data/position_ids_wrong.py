import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, WIDTH = 0, 24


class Reader(nn.Module):
    def __init__(self, vocab=16, dim=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(WIDTH, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        mask = ids != PAD
        pos = torch.arange(ids.size(1)).expand_as(ids)
        h = self.tok(ids) + self.pos(pos)
        h = self.layer(h, src_key_padding_mask=~mask)
        return self.out(h[:, -1])


def left_pad(rows):
    batch = torch.full((len(rows), WIDTH), PAD)
    for i, row in enumerate(rows):
        batch[i, WIDTH - len(row) :] = row
    return batch


def messages(n):
    """4 to 12 tokens; the answer is the second one."""
    rows = [torch.randint(1, 16, (int(torch.randint(4, 13, ())),)) for _ in range(n)]
    return rows, torch.stack([row[1] for row in rows])


def main():
    torch.manual_seed(74)
    model = Reader()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(300):
        rows, answer = messages(32)
        loss = F.cross_entropy(model(left_pad(rows)), answer)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 60 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    rows, answer = messages(300)
    with torch.no_grad():
        hits = [model(row[None]).argmax().item() == a.item() for row, a in zip(rows, answer, strict=True)]
    print(f"final acc {sum(hits) / len(hits):.4f}")


if __name__ == "__main__":
    main()
