import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Events(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            m = int(torch.randint(3, 15, (1,), generator=g))
            values = torch.rand(m, generator=g) * 2 - 1
            marks = (torch.rand(m, generator=g) < 0.3).float()
            self.items.append((torch.stack([values, marks], 1), (values * marks).sum()))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    seqs, ys = zip(*batch, strict=True)
    lens = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True), lens, torch.stack(ys)


class Summer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 32, batch_first=True)
        self.fc = nn.Linear(32, 1)

    def forward(self, x, lens):
        packed = pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        return self.fc(h[-1]).squeeze(-1)


torch.manual_seed(2)
train = DataLoader(Events(1200, 1), batch_size=40, shuffle=True, collate_fn=collate)
model = Summer()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
mse = nn.MSELoss()
for epoch in range(9):
    clipped = 0
    for x, lens, y in train:
        opt.zero_grad()
        loss = mse(model(x, lens), y)
        loss.backward()
        clipped += int(nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 1.0)
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f} clipped {clipped}/{len(train)}")
model.eval()
with torch.no_grad():
    x, lens, y = collate(Events(300, 2))
    print(f"final mse {mse(model(x, lens), y).item():.4f}")
