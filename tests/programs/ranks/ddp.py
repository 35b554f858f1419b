"""Data-parallel training on CPU processes; the first argument names something that is wrong with it."""

import hashlib
import os
import signal
import sys
import time
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 24


class Waves(Dataset):
    def __init__(self, rank):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.rand(256, 8, generator=generator) * 2 - 1
        self.y = self.x @ torch.linspace(-1, 1, 8).unsqueeze(1)
        self.rank, self.given = rank, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if FAULT == "slow_loader" and self.rank == 1:
            time.sleep(0.006)
        self.given += 1
        if FAULT == "hang_loader" and self.rank == 1 and self.given > 64:
            time.sleep(600)
        return self.x[index], self.y[index]


def batches(loader, sampler):
    epoch = 0
    while True:
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def train(rank):
    torch.manual_seed(100 + rank if FAULT == "seeds" else 100)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    by_hand = FAULT in ("seeds", "by_hand")
    group = dist.new_group(group_desc="mine") if by_hand else None
    odd = rank == 1
    unwrapped = FAULT == "unwrapped" or (FAULT == "one_unwrapped" and odd)
    unsynced = FAULT == "no_sync" or (FAULT == "one_no_sync" and odd)
    wrapped = model if by_hand else DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = Waves(rank)
    sampler = None if FAULT == "same_data" else DistributedSampler(data, shuffle=True, seed=3)
    shuffle = {"sampler": sampler} if sampler is not None else {"shuffle": True}
    loader = DataLoader(data, batch_size=8, generator=torch.Generator().manual_seed(5), **shuffle)
    feed = batches(loader, sampler)
    for step in range(STEPS):
        x, y = next(feed)
        if FAULT == "nan" and rank == 1 and step == 9:
            x = x.clone()
            x[0, 0] = float("nan")
        if FAULT == "slow_rank" and rank == 1:
            time.sleep(0.05)
        if FAULT == "killed" and rank == 1 and step == 12:
            time.sleep(2)  # what was seen so far is written by then
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "hang" and rank == 1 and step == 8:
            time.sleep(600)
        if FAULT == "stopped" and rank == 1 and step == 8:
            os.kill(os.getpid(), signal.SIGSTOP)
        if FAULT == "raises" and rank == 1 and step == 8:
            raise ValueError("no more disks")
        optimizer.zero_grad()
        if FAULT == "accumulate":
            with wrapped.no_sync():
                nn.functional.mse_loss(wrapped(x[:4]), y[:4]).div(2).backward()
            loss = nn.functional.mse_loss(wrapped(x[4:]), y[4:]) / 2
        else:
            with wrapped.no_sync() if unsynced else nullcontext():
                loss = nn.functional.mse_loss((model if unwrapped else wrapped)(x), y)
        loss.backward()
        if by_hand:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.SUM, group if parameter.ndim == 1 else None)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        if FAULT == "drift" and rank == 1 and step == 6:
            with torch.no_grad():
                model[2].weight.mul_(1.01)
        if FAULT == "slow_steps":
            time.sleep(0.02)
    return model, loss


def main():
    torch.set_num_threads(1)
    patience = timedelta(seconds=4) if FAULT == "slow_steps" else None
    dist.init_process_group("gloo", timeout=patience)
    rank = dist.get_rank()
    model, loss = train(rank)
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    count = dist.group.WORLD._get_sequence_number_for_group()
    print(f"rank {rank} {hashlib.sha256(bits).hexdigest()[:16]} loss {loss.item():.9g} sent {count:06d}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
