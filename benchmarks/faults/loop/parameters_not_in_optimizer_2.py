import torch
import torch.nn as nn


class Bracket(nn.Module):
    """Predicts the nesting depth after every character."""

    def __init__(self, vocab=6, dim=12, hidden=24, depth=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, depth)

    def forward(self, tokens):
        h, _ = self.rnn(self.embed(tokens))
        return self.head(self.norm(h))


def configure_optimizer(model, lr):
    decay, no_decay = [], []
    for name, param in model.named_parameters():
        if name.endswith(".bias") or "norm" in name or "embed" in name:
            no_decay.append(param)
        elif name.endswith(".weight"):
            decay.append(param)
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)


def batch(n, length=16):
    tokens = torch.randint(0, 6, (n, length))
    change = (tokens == 0).long() - (tokens == 1).long()
    depth = torch.zeros(n, dtype=torch.long)
    depths = []
    for t in range(length):
        depth = (depth + change[:, t]).clamp(0, 5)
        depths.append(depth)
    return tokens, torch.stack(depths, 1)


def main():
    torch.manual_seed(7)
    model = Bracket()
    optimizer = configure_optimizer(model, lr=1e-2)
    criterion = nn.CrossEntropyLoss()
    for step in range(300):
        tokens, depths = batch(48)
        loss = criterion(model(tokens).flatten(0, 1), depths.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        tokens, depths = batch(300)
        acc = (model(tokens).argmax(-1) == depths).float().mean().item()
    print(f"final acc {acc:.4f}")


if __name__ == "__main__":
    main()
