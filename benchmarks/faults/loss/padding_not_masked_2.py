import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence


class ReviewScore(nn.Module):
    """Mean of the word vectors, then a small regressor."""

    def __init__(self, vocab=50, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, ids):
        vectors = self.embed(ids)
        pooled = vectors.mean(1)
        return self.mlp(pooled).squeeze(1)


def reviews(n):
    """2 to 40 words; the score is the mean of the word scores."""
    rows = [torch.randint(1, 50, (int(torch.randint(2, 41, ())),)) for _ in range(n)]
    return rows, torch.stack([worth[row].mean() for row in rows])


torch.manual_seed(45)
worth = torch.randn(50)
worth[0] = 0.0
rows, score = reviews(1200)
test_rows, test_score = reviews(300)
model = ReviewScore()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(12):
    for picked in torch.randperm(1200).split(40):
        ids = pad_sequence([rows[i] for i in picked.tolist()], batch_first=True, padding_value=0)
        loss = F.mse_loss(model(ids), score[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 3 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")

with torch.no_grad():
    pred = torch.cat([model(row[None]) for row in test_rows])
print(f"final mse {(pred - test_score).pow(2).mean().item():.5f}")
