import torch
import torch.nn as nn
import torch.nn.functional as F

MAX_LEN, IGNORE, SEP = 16, -100, 19


class Model(nn.Module):
    def __init__(self, vocab=20, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.lm_head(self.gru(self.embed(ids))[0])


def example():
    """A 15-token instruction, its last token names the word the answer repeats three times."""
    prompt = torch.randint(0, 19, (15,))
    answer = prompt[-1:].add(1).remainder(19).repeat(3)
    ids = torch.cat([prompt, torch.tensor([SEP]), answer])
    labels = ids.clone()
    labels[: len(prompt) + 1] = IGNORE
    return ids[:MAX_LEN], labels[:MAX_LEN]


def collate(n):
    rows = [example() for _ in range(n)]
    return torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])


torch.manual_seed(73)
model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(200):
    ids, labels = collate(16)
    logits = model(ids)[:, :-1]
    loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")
prompt = torch.randint(0, 19, (400, 15))
ask = torch.cat([prompt, torch.full((400, 1), SEP)], 1)
with torch.no_grad():
    answer = model(ask)[:, -1].argmax(1)
print(f"final answer_acc {(answer == (prompt[:, -1] + 1) % 19).float().mean().item():.4f}")
