import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, MASK, LEN, DIM = 14, 13, 8, 32


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(1, LEN, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.enc(self.tok(ids) + self.pos)))


def sentences(n):
    # counting upwards or downwards modulo 13
    start, stride = torch.randint(0, 13, (n, 1)), torch.randint(0, 2, (n, 1)) * 2 - 1
    return (start + stride * torch.arange(LEN)) % 13


def corrupt(ids):
    hide = torch.rand(ids.shape) < 0.25
    hide[:, 3] |= ~hide.any(1)
    return ids.masked_fill(hide, MASK), ids.masked_fill(~hide, -100)


def lr_lambda(step, warm=40, total=300):
    return (step + 1) / warm if step < warm else max(0.05, (total - step) / (total - warm))


torch.manual_seed(1)
model = Encoder()
opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_lambda)
for step in range(300):
    x, y = corrupt(sentences(48))
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.5f}")

model.eval()
x, y = corrupt(sentences(400))
with torch.no_grad():
    pred = model(x).argmax(-1)
print(f"final acc {(pred == y)[y >= 0].float().mean().item():.4f}")
