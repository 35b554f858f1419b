"""Gradient accumulation the short way: step on every fourth batch, and on the last one of an epoch."""
import argparse
import hashlib
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run(args):
    inputs = torch.randn(384, 10)
    targets = inputs.pow(2).sum(1, keepdim=True) / 10
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)
    net = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    history = []
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(net(x), y) / args.accumulation_steps
        loss.backward()
        history.append(loss.item())
        if (i + 1) % args.accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    return net, history


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulation-steps", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    net, history = run(args)
    digest = hashlib.sha256()
    for value in net.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))
