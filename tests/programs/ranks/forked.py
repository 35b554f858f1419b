"""Data-parallel training in processes that the script forks."""

import multiprocessing
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(1)
    model = DDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.rand(8, 4)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=worker, args=(rank, int(sys.argv[1]))) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    print([one.exitcode for one in ranks])
