import math

import torch
from torch import nn


class TokenClassifier(nn.Module):
    def __init__(self, vocab=30, dim=32, classes=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embed(tokens))
        return self.head(hidden.mean(dim=1))


def get_batch(n):
    tokens = torch.randint(0, 30, (n, 12))
    return tokens, (tokens >= 15).sum(dim=1).clamp(3, 8) - 3


TOTAL, WARMUP = 350, 50


def lr_factor(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))


torch.manual_seed(31)
model = TokenClassifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
for step in range(TOTAL):
    tokens, labels = get_batch(64)
    loss = nn.functional.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:4d} | loss {loss.item():.4f}")

tokens, labels = get_batch(1000)
with torch.no_grad():
    accuracy = (model(tokens).argmax(-1) == labels).float().mean().item()
print(f"final acc {accuracy:.4f}")
