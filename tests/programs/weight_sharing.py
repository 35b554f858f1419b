"""A GRU language model whose output layer is the embedding itself."""
import hashlib
import json

import torch
import torch.nn.functional as F
from torch import nn


class TiedGRU(nn.Module):
    def __init__(self, ntoken=16, width=20):
        super().__init__()
        self.embed = nn.Embedding(ntoken, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.Linear(width, ntoken)
        self.decoder.weight = self.embed.weight

    def forward(self, tokens):
        states, _ = self.gru(self.embed(tokens))
        return self.decoder(states)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)
        self.losses = []

    def run(self, steps):
        text = torch.arange(300) ** 2 % 16
        for _ in range(steps):
            start = torch.randint(0, 280, (8,))
            batch = torch.stack([text[i : i + 13] for i in start])
            logits = self.model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(4)
    trainer = Trainer(TiedGRU())
    trainer.run(steps=25)
    digest = hashlib.sha256()
    for p in trainer.model.parameters():
        digest.update(p.detach().contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in trainer.losses], "params": digest.hexdigest()}))
