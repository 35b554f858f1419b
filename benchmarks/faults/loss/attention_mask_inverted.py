import torch
import torch.nn as nn
import torch.nn.functional as F


class Pooler(nn.Module):
    """A learned query reads a padded token sequence."""

    def __init__(self, vocab=40, dim=32, classes=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.query = nn.Parameter(0.1 * torch.randn(1, 1, dim))
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, classes))

    def forward(self, ids):
        h = self.embed(ids)
        mask = ids != 0
        pooled, _ = self.attn(self.query.expand(len(ids), -1, -1), h, h, key_padding_mask=mask)
        return self.mlp(pooled[:, 0])


def reviews(n, width=24):
    """5 to 20 tokens; tokens 1-8 are marker words, two per class, the rest is filler."""
    ids = torch.randint(9, 40, (n, width))
    label = torch.randint(0, 4, (n,))
    length = torch.randint(5, 21, (n,))
    for j in range(2):
        spot = (torch.rand(n) * length).long()
        ids[torch.arange(n), spot] = 1 + 2 * label + j
    ids[torch.arange(width)[None] >= length[:, None]] = 0
    return ids, label


torch.manual_seed(41)
model = Pooler()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
warm = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=30)
for step in range(300):
    ids, label = reviews(48)
    loss = F.cross_entropy(model(ids), label)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    warm.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
model.eval()
ids, label = reviews(600)
with torch.no_grad():
    print(f"final acc {(model(ids).argmax(1) == label).float().mean().item():.4f}")
