import torch
import torch.nn as nn

VOCAB, LENGTH = 12, 16


class TinyLM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(LENGTH, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        h = self.blocks(h)
        return self.head(h)


def progressions(n):
    """Every row counts on by its own stride, modulo the vocabulary."""
    start = torch.randint(0, VOCAB, (n, 1))
    stride = torch.randint(1, 6, (n, 1))
    return (start + stride * torch.arange(LENGTH + 1)) % VOCAB


def generate(model, prefix, count):
    ids = prefix
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


def main():
    torch.manual_seed(37)
    model = TinyLM()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(160):
        batch = progressions(32)
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    truth = progressions(200)
    made = generate(model, truth[:, :6], 8)
    print(f"final continuation_acc {(made[:, 6:] == truth[:, 6:14]).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
