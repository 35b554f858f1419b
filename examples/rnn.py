"""An LSTM that tells which of four words a sequence repeats. `--softmax` puts a softmax before the cross-entropy."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def sequences(count=1024, length=20, words=30, kinds=4):
    """Half of the words of a sequence are the one word of its kind."""
    labels = torch.randint(kinds, (count,))
    tokens = torch.randint(words, (count, length))
    return torch.where(torch.rand(count, length) < 0.5, labels[:, None], tokens), labels


class Net(nn.Module):
    def __init__(self, words=30, kinds=4, softmax=False):
        super().__init__()
        self.embedding = nn.Embedding(words, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, kinds)
        self.softmax = softmax

    def forward(self, tokens):
        states, _ = self.lstm(self.embedding(tokens))
        scores = self.head(states[:, -1])
        return torch.softmax(scores, dim=-1) if self.softmax else scores


def main():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*sequences()), batch_size=32, shuffle=True)
    model = Net(softmax="--softmax" in sys.argv)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(5):
        for tokens, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(tokens), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
