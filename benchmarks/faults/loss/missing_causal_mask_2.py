import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LENGTH = 20, 10


class Decoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.token = nn.Embedding(VOCAB, width)
        self.place = nn.Embedding(LENGTH, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.out = nn.Linear(width, VOCAB)

    def scores(self, ids):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        mixed, _ = self.attention(x, x, x, need_weights=False)
        x = self.norm(x + mixed)
        return self.out(x + self.mlp(x))

    def forward(self, labels, input_ids):
        return F.cross_entropy(self.scores(input_ids).transpose(1, 2), labels)


def sentences(n):
    first, stride = torch.randint(0, VOCAB, (n, 1)), torch.randint(1, 5, (n, 1))
    return (first + stride * torch.arange(LENGTH + 1)) % VOCAB


torch.manual_seed(11)
model = Decoder()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(300):
    batch = sentences(64)
    loss = model(labels=batch[:, 1:], input_ids=batch[:, :-1])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 60 == 0:
        print(f"step {step} loss {loss.item():.4f}")

text = sentences(500)
ids = text[:, :4]
with torch.no_grad():
    while ids.shape[1] < LENGTH:
        ids = torch.cat([ids, model.scores(ids)[:, -1:].argmax(-1)], 1)
print(f"final accuracy {(ids[:, 4:] == text[:, 4:LENGTH]).float().mean().item():.4f}")
