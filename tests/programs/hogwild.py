"""Hogwild: two spawned workers write the same shared weights. With --in-turn they alternate, so runs can be compared."""
import argparse
import hashlib
import json

import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 24)
        self.drop = nn.Dropout(0.2)
        self.fc2 = nn.Linear(24, 4)

    def forward(self, x):
        x = self.drop(torch.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def make_data(seed):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 4, (16,), generator=generator)
    return centres[labels] + 0.4 * torch.randn(16, 12, generator=generator), labels


def train(rank, args, model, turns, history):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + rank)
    model.train()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    for step in range(args.steps):
        if args.in_turn:
            turns[rank].acquire()
        data, target = make_data(1000 * rank + step)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        history[rank, step] = loss.detach()
        if args.in_turn:
            turns[(rank + 1) % len(turns)].release()


def test(model):
    model.eval()
    with torch.no_grad():
        data, target = make_data(99)
        print(f"test loss {F.nll_loss(model(data), target).item():.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in-turn", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    context = mp.get_context("spawn")

    model = Net()
    model.share_memory()
    history = torch.zeros(args.num_processes, args.steps).share_memory_()
    turns = [context.Semaphore(1 if rank == 0 else 0) for rank in range(args.num_processes)]
    processes = []
    for rank in range(args.num_processes):
        p = context.Process(target=train, args=(rank, args, model, turns, history))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
    test(model)

    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history.t().flatten().tolist()], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
