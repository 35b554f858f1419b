import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser(description="topic tags for short documents")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--lr", type=float, default=5e-3)
args = parser.parse_args()

VOCAB, TOPICS = 120, 8
torch.manual_seed(31)
topic_words = torch.rand(TOPICS, VOCAB).topk(12, dim=1).indices


def documents(n):
    """Bags of 30 words; every document carries each topic with probability 0.35."""
    tags = (torch.rand(n, TOPICS) < 0.35).float()
    words = torch.randint(0, VOCAB, (n, 30))
    for row in range(n):
        present = tags[row].nonzero().flatten()
        for slot in range(min(28, 6 * len(present))):
            topic = present[slot % len(present)]
            words[row, slot] = topic_words[topic, torch.randint(0, 12, (1,))]
    return words, tags


words, tags = documents(1200)
test_words, test_tags = documents(300)
bag = nn.EmbeddingBag(VOCAB, 32, mode="mean")
classifier = nn.Sequential(bag, nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, TOPICS))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(classifier.parameters(), lr=args.lr)
for step in range(args.steps):
    rows = torch.randint(0, 1200, (64,))
    optimizer.zero_grad()
    loss = loss_fn(classifier(words[rows]), tags[rows])
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        print(f"step {step} loss {loss.item():.4f}")

with torch.no_grad():
    guess = classifier(test_words) > 0
exact = (guess == test_tags.bool()).all(1).float().mean()
print(f"final exact_match {exact.item():.4f}")
