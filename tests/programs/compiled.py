"""A model behind torch.compile, with a backend that needs no compiler on the machine."""
import argparse
import hashlib
import json

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 32)
        self.norm = nn.LayerNorm(32)
        self.mid = nn.Linear(32, 32)
        self.out = nn.Linear(32, 3)
        self.checkpointed = False

    def forward(self, x):
        x = torch.relu(self.norm(self.inp(x)))
        if self.checkpointed:  # with the backend "eager" the repeated forward draws another mask
            return self.out(checkpoint(lambda y: nn.functional.dropout(torch.relu(self.mid(y)), 0.2), x, use_reentrant=False))
        return self.out(torch.relu(self.mid(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpointed", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(17)
    model = MLP()
    model.checkpointed = args.checkpointed
    compiled_model = torch.compile(model, backend=args.backend)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    centres = torch.randn(3, 8)
    history = []
    for _ in range(args.steps):
        labels = torch.randint(0, 3, (16,))
        logits = compiled_model(centres[labels] + 0.5 * torch.randn(16, 8))
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())

    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    print(f"graphs {graphs}, graph breaks {breaks}")
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
