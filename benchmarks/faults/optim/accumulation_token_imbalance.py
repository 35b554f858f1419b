import random

import torch
from torch import nn

VOCAB, MICRO_BATCHES = 20, 4


def chain(successor, length):
    token = random.randrange(VOCAB)
    out = [token]
    for _ in range(length):
        token = successor[token] if random.random() < 0.9 else random.randrange(VOCAB)
        out.append(token)
    return out


def collate(docs):
    longest = max(map(len, docs))
    inputs = torch.zeros(len(docs), longest - 1, dtype=torch.long)
    targets = torch.full((len(docs), longest - 1), -100)
    for row, doc in enumerate(docs):
        inputs[row, : len(doc) - 1] = torch.tensor(doc[:-1])
        targets[row, : len(doc) - 1] = torch.tensor(doc[1:])
    return inputs, targets


random.seed(1)
torch.manual_seed(1)
articles, messages = torch.randperm(VOCAB).tolist(), torch.randperm(VOCAB).tolist()
docs = [chain(articles, random.randint(50, 70)) for _ in range(160)]
docs += [chain(messages, random.randint(2, 4)) for _ in range(480)]
docs.sort(key=len)  # similar lengths together: less padding
batches = [collate(docs[i : i + 8]) for i in range(0, len(docs), 8)]

model = nn.Sequential(nn.Embedding(VOCAB, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, VOCAB))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(25):
    random.shuffle(batches)
    for i in range(0, len(batches), MICRO_BATCHES):
        window = batches[i : i + MICRO_BATCHES]
        optimizer.zero_grad()
        for inputs, targets in window:
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / len(window)
            loss.backward()
        optimizer.step()
    if epoch % 5 == 0:
        print(f"epoch {epoch} loss {loss.item() * len(window):.4f}")

total = count = 0.0
with torch.no_grad():
    for inputs, targets in batches:
        total += nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum").item()
        count += (targets != -100).sum().item()
print(f"final token_loss {total / count:.4f}")
