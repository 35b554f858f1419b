import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(43)
VOCAB = 25
table = torch.softmax(3.5 * torch.randn(VOCAB, VOCAB), 1)


def sample_text(length):
    ids = [0]
    for _ in range(length - 1):
        ids.append(torch.multinomial(table[ids[-1]], 1).item())
    return torch.tensor(ids)


class Chunks(Dataset):
    def __init__(self, text, size=20):
        self.text, self.size = text, size

    def __len__(self):
        return (len(self.text) - 1) // self.size

    def __getitem__(self, i):
        chunk = self.text[i * self.size : (i + 1) * self.size + 1]
        return chunk[:-1], chunk[1:]


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.out = nn.Linear(48, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


train = DataLoader(Chunks(sample_text(12001)), batch_size=24, shuffle=True)
test = DataLoader(Chunks(sample_text(2001)), batch_size=100)
net = CharRNN()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(6):
    for ids, target in train:
        logits = net(ids)
        shift_logits, shift_target = logits[:, :-1], target[:, 1:]
        loss = F.cross_entropy(shift_logits.reshape(-1, VOCAB), shift_target.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    hits = [(net(ids).argmax(-1) == target).float().mean() for ids, target in test]
print(f"final next_token_acc {torch.stack(hits).mean().item():.4f}")
