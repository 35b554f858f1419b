"""A training program that takes its steps on command, so that several of them can run in turns.

python programs.py NAME SOCKET [PEER]

Knows nothing of neuraldbg: the bare arm is this file run by python, the watched ones are this file under `neural
debug`. Reads "N\\n" from the socket, takes N steps, and answers with the CPU time of the process (all threads) and the
wall time so far, in nanoseconds.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Step = Callable[[], None]
Program = tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]], torch.optim.Optimizer]


def mlp(layers: int = 20, width: int = 256, batch: int = 64) -> Program:
    """20 linear layers, ReLU between them, SGD with momentum: a step of 2 ms, where every microsecond shows."""
    parts: list[nn.Module] = []
    for _ in range(layers - 1):
        parts += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Linear(width, 10))
    data = _rows(torch.randn(64 * batch, width), torch.randint(0, 10, (64 * batch,)), batch)
    return model, data, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU()
        self.down = nn.Identity() if stride == 1 and inside == outside else nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu(inner + self.down(x))
        return out


def resnet(batch: int = 16) -> Program:
    """ResNet-18's eight blocks on images of 32 x 32, with 32 to 256 channels."""
    widths = (32, 32, 64, 64, 128, 128, 256, 256)
    blocks: list[nn.Module] = [nn.Conv2d(3, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU()]
    before = 32
    for number, width in enumerate(widths):
        blocks.append(Block(before, width, 2 if number and number % 2 == 0 else 1))
        before = width
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
    data = _rows(torch.randn(32 * batch, 3, 32, 32), torch.randint(0, 10, (32 * batch,)), batch)
    return model, data, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def gpt(layers: int = 6, width: int = 256, batch: int = 4, vocabulary: int = 2048, length: int = 128) -> Program:
    """Six layers of width 256, a vocabulary of 2,048, AdamW."""
    model = GPT(layers, width, max(width // 64, 1), vocabulary, length)
    tokens = torch.randint(0, vocabulary, (64 * batch, length + 1))
    data = _rows(tokens[:, :-1], tokens[:, 1:], batch)
    return model, data, torch.optim.AdamW(model.parameters(), lr=3e-4)


def gpt2() -> Program:
    """The size of GPT-2 (124 M parameters) with a batch of one short sequence: for the memory that watching takes."""
    return gpt(layers=12, width=768, batch=1, vocabulary=50257, length=64)


PROGRAMS: dict[str, Callable[[], Program]] = {"mlp": mlp, "resnet": resnet, "gpt": gpt, "gpt2": gpt2}


def _rows(inputs: Tensor, targets: Tensor, batch: int) -> Callable[[], tuple[Tensor, Tensor]]:
    state = {"next": 0}

    def next_batch() -> tuple[Tensor, Tensor]:
        start = state["next"] * batch % len(inputs)
        state["next"] += 1
        return inputs[start : start + batch], targets[start : start + batch]

    return next_batch


def program_of(name: str) -> Program:
    kind, _, layers = name.partition(":")  # mlp:500 = with 500 layers
    return mlp(int(layers), width=64, batch=16) if layers else PROGRAMS[kind]()


def step_of(program: Program, around: Callable[[], Any] = contextlib.nullcontext) -> Step:
    model, data, optimizer = program

    def step() -> None:
        with around():
            inputs, targets = data()
            optimizer.zero_grad()
            out = model(inputs)
            loss = F.cross_entropy(out.flatten(0, -2), targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return step


def main() -> None:
    name, address = sys.argv[1:3]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    program = program_of(name)
    if len(sys.argv) > 3:
        import peers

        step = peers.step_of(sys.argv[3], program, step_of)
    else:
        step = step_of(program)
    line = socket.socket(socket.AF_UNIX)
    line.connect(address)
    with line, line.makefile("rw", buffering=1) as talk:
        talk.write(f"{os.getpid()}\n")
        for steps in talk:
            for _ in range(int(steps)):
                step()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            talk.write(f"{time.process_time_ns()} {time.monotonic_ns()} {peak}\n")


if __name__ == "__main__":
    main()
