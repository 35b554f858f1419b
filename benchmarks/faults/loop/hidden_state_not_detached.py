import torch
import torch.nn as nn

torch.manual_seed(3)
text = "the quick brown fox jumps over the lazy dog and runs back to the quiet wood " * 40
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])
BATCH, BPTT = 8, 20
stream = ids[: len(ids) // BATCH * BATCH].view(BATCH, -1)


class CharRNN(nn.Module):
    def __init__(self, vocab, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, 16)
        self.lstm = nn.LSTM(16, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, x, state=None):
        h, state = self.lstm(self.embed(x), state)
        return self.out(h), state


model = CharRNN(len(chars))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(6):
    state = None
    for i in range(0, stream.size(1) - BPTT - 1, BPTT):
        x, y = stream[:, i : i + BPTT], stream[:, i + 1 : i + BPTT + 1]
        logits, state = model(x, state)
        loss = nn.functional.cross_entropy(logits.reshape(-1, len(chars)), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
print(f"final loss {loss.item():.4f}")
