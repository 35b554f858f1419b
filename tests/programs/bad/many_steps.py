"""A tiny model for very many steps; says how much memory the process holds after a tenth of them and at the end."""
import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(4, 2), torch.randn(4, 1)
for step in range(args.steps):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if step + 1 == args.steps // 10:
        print("RSS", step + 1, resident_bytes(), flush=True)
print("RSS", args.steps, resident_bytes(), flush=True)
