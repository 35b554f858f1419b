"""A small encoder and decoder; the model is given source, shifted target and labels, and returns its loss."""

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LENGTH, START = 14, 8, 0


class Translator(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.token = nn.Embedding(VOCAB, width)
        self.place = nn.Embedding(LENGTH, width)
        self.encoder = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(width, 4, 96, dropout=0.0, batch_first=True)
        self.out = nn.Linear(width, VOCAB)
        self.register_buffer("later", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def embed(self, ids):
        return self.token(ids) + self.place(torch.arange(ids.shape[1]))

    def forward(self, source, target, labels=None):
        read = self.encoder(self.embed(source))
        mask = self.later[: target.shape[1], : target.shape[1]]
        logits = self.out(self.decoder(self.embed(target), read, tgt_mask=mask))
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def pairs(n):
    source = torch.randint(1, VOCAB, (n, LENGTH))
    labels = source.flip(1)
    return source, torch.cat([torch.full((n, 1), START), labels[:, :-1]], 1), labels


torch.manual_seed(31)
model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(350):
    source, target, labels = pairs(48)
    loss = model(source, target, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 70 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    source, target, labels = pairs(300)
    print(f"final accuracy {(model(source, target).argmax(-1) == labels).float().mean().item():.4f}")
