import torch
import torch.nn as nn

torch.manual_seed(27)
VOCAB = 16
rule = torch.randperm(VOCAB)


def sequences(n, length=12):
    seq = torch.empty(n, length + 1, dtype=torch.long)
    seq[:, 0] = torch.randint(0, VOCAB, (n,))
    for t in range(length):
        noise = torch.randint(0, VOCAB, (n,))
        seq[:, t + 1] = torch.where(torch.rand(n) < 0.1, noise, rule[seq[:, t]])
    return seq


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 24)
        self.lstm = nn.LSTM(24, 48, batch_first=True)
        self.decoder = nn.Linear(48, VOCAB)

    def forward(self, x):
        out, _ = self.lstm(self.embedding(x))
        return self.decoder(out)


model = CharLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for step in range(250):
    optimizer.zero_grad()
    optimizer.step()
    seq = sequences(32)
    logits = model(seq[:, :-1])
    loss = criterion(logits.reshape(-1, VOCAB), seq[:, 1:].reshape(-1))
    loss.backward()
    if step % 25 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}  ppl {loss.exp().item():.2f}")
print(f"final loss {loss.item():.4f}")
