import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, VOCAB, ACCUM = 0, 12, 4


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 16, padding_idx=PAD)
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def micro_batch(n):
    """Tag every token: has the running sum of the ids so far been odd?"""
    length = int(torch.randint(2, 16, (1,)))
    lens = torch.randint(1, length + 1, (n,))
    lens[0] = length
    ids = torch.randint(1, VOCAB, (n, length))
    tags = (ids > 5).long().cumsum(1) % 2
    pad = torch.arange(length) >= lens[:, None]
    return ids.masked_fill(pad, PAD), tags.masked_fill(pad, -100)


torch.manual_seed(10)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
for step in range(130):
    micros = [micro_batch(16) for _ in range(ACCUM)]
    n_tokens = sum(int((t != -100).sum()) for _, t in micros)
    optimizer.zero_grad()
    total = 0.0
    for ids, tags in micros:
        loss = F.cross_entropy(model(ids).transpose(1, 2), tags, ignore_index=-100, reduction="sum") / n_tokens
        loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} tokens {n_tokens} loss {total:.4f}")

right = count = 0
with torch.no_grad():
    for _ in range(10):
        ids, tags = micro_batch(64)
        keep = tags != -100
        right += int((model(ids).argmax(-1) == tags)[keep].sum())
        count += int(keep.sum())
print(f"final acc {right / count:.4f}")
