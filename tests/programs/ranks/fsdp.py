"""Training with parameters sharded over CPU processes (fully_shard)."""

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 24


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.blocks = nn.ModuleList([Block(32), Block(32)])
        self.last = nn.Linear(32, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def main():
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (int(__import__("os").environ["WORLD_SIZE"]),))
    rank = dist.get_rank()
    torch.manual_seed(100)
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        x = torch.rand(16, 8, generator=generator) * 2 - 1
        if FAULT == "nan" and rank == 1 and step == 9:
            x[0, 0] = float("nan")
        if FAULT == "slow_rank" and rank == 1:
            time.sleep(0.05)
        if FAULT == "hang" and rank == 1 and step == 8:
            time.sleep(600)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
        if FAULT == "clip":
            loss = loss / 2
        optimizer.zero_grad()
        loss.backward()
        if FAULT == "clip":
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9).full_tensor()
            if rank == 0 and step == 7:
                print(f"norm {norm.item():.9g}")
        optimizer.step()
    bits = b"".join(p.to_local().detach().numpy().tobytes() for p in model.parameters())
    count = dist.group.WORLD._get_sequence_number_for_group()
    print(f"rank {rank} {hashlib.sha256(bits).hexdigest()[:16]} loss {loss.item():.9g} sent {count:06d}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
