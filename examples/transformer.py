"""A small decoder that learns which word follows which. `--no-mask` lets every word see the ones after it."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def texts(count=512, length=16, words=24):
    """Every word has one that mostly follows it."""
    follows = torch.randperm(words)
    text = [torch.randint(words, (count,))]
    for _ in range(length):
        other = torch.randint(words, (count,))
        text.append(torch.where(torch.rand(count) < 0.1, other, follows[text[-1]]))
    return torch.stack(text, 1)


class Decoder(nn.Module):
    def __init__(self, words=24, width=32, length=16, masked=True):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, words)
        self.masked = masked

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.masked else None
        x = self.words(tokens) + self.places(torch.arange(length))
        return self.head(self.block(x, src_mask=mask))


def main():
    torch.manual_seed(0)
    text = texts()
    loader = DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), batch_size=32, shuffle=True)
    model = Decoder(masked="--no-mask" not in sys.argv)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(5):
        for tokens, following in loader:
            optimizer.zero_grad()
            loss = criterion(model(tokens).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
