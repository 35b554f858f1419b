"""A sequence tagger around nn.TransformerEncoder: deep-copied layers and attention modules that return tuples."""
import argparse
import hashlib
import json
import math

import torch
import torch.nn as nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class TransformerModel(nn.Module):
    def __init__(self, ntoken, d_model=32, nhead=4, d_hid=48, nlayers=2):
        super().__init__()
        self.embedding = nn.Embedding(ntoken, d_model)
        self.pos_encoder = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, d_hid, dropout=0.1, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, nlayers)
        self.linear = nn.Linear(d_model, ntoken)

    def forward(self, src, src_mask):
        x = self.pos_encoder(self.embedding(src))
        return self.linear(self.transformer_encoder(x, mask=src_mask))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    text = (torch.arange(400) * 5 + torch.arange(400) // 7) % 18
    model = TransformerModel(18)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.95)
    mask = nn.Transformer.generate_square_subsequent_mask(12)
    history = []
    model.train()
    for step in range(args.steps):
        start = torch.randint(0, 380, (6,))
        data = torch.stack([text[i : i + 12] for i in start])
        targets = torch.stack([text[i + 1 : i + 13] for i in start])
        output = model(data, mask)
        loss = criterion(output.view(-1, 18), targets.view(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        history.append(loss.item())
    model.eval()
    with torch.no_grad():
        output = model(text[:12].unsqueeze(0), mask)
        print(f"valid loss {criterion(output.view(-1, 18), text[1:13]).item():.4f}")

    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
