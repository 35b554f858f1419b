import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2
VOCAB, WIDTH, MAXLEN = 16, 32, 14


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, WIDTH)
        self.wpe = nn.Embedding(MAXLEN, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.05)
        nn.init.normal_(self.wpe.weight, std=0.05)

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.triu(torch.full((n, n), float("-inf")), 1)
        x = self.wte(ids) + self.wpe(torch.arange(n))
        return self.lm_head(self.blocks(x, mask=mask))


def corpus(n):
    """Counting up by one or two (modulo 13), sentences of different length, padded on the right."""
    ids = torch.full((n, MAXLEN + 1), PAD)
    ids[:, 0] = BOS
    for row in ids:
        m = int(torch.randint(5, MAXLEN, (1,)))
        row[1 : m + 1] = 3 + (torch.randint(0, 13, (1,)) + torch.arange(m) * torch.randint(1, 3, (1,))) % 13
        row[m + 1] = EOS
    return ids


def lm_loss(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1), ignore_index=PAD)


torch.manual_seed(33)
text = corpus(1200)
model = TinyLM()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
for step in range(280):
    loss = lm_loss(model, text[torch.randint(0, 1000, (32,))])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")
model.eval()
with torch.no_grad():
    print(f"final nll {lm_loss(model, text[1000:]).item():.4f}")
