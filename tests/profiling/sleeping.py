"""Programs whose costs are known: they sleep where they say, and keep their own books of how long that really took."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Books:
    """Seconds by name, by the program's own clock: on a busy machine a sleep lasts longer than it was told to."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.steps: list[float] = []
        self.rows: list[dict[str, float]] = []  # the same seconds, step by step
        self.told: dict[str, dict[int, float]] = {}  # what the profile has of each step
        self.ours_s = 0.0  # of the debugger, in those steps

    def sleep(self, name: str, seconds: float) -> None:
        start = time.perf_counter()
        time.sleep(seconds)
        self.seconds[name] += time.perf_counter() - start

    @contextmanager
    def step(self) -> Iterator[None]:
        before, start = dict(self.seconds), time.perf_counter()
        yield
        self.steps.append(time.perf_counter() - start)
        self.rows.append({name: spent - before.get(name, 0.0) for name, spent in self.seconds.items()})

    def forget(self) -> None:
        self.seconds.clear()
        self.steps.clear()
        self.rows.clear()


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, books, name, seconds):  # type: ignore[no-untyped-def]
        ctx.given = (books, name, seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        books, name, seconds = ctx.given
        books.sleep(f"{name} backward", seconds)
        return gradient, None, None, None


def backward_sleep(x: Tensor, books: Books, name: str, seconds: float) -> Tensor:
    """The values as they are; their backward takes this long."""
    result: Tensor = _Sleep.apply(x, books, name, seconds)  # type: ignore[no-untyped-call]
    return result


class Slow(nn.Module):
    """A layer that takes as long as it is told, forward and backward."""

    def __init__(self, books: Books, name: str, forward_s: float, backward_s: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.books, self.name, self.forward_s, self.backward_s = books, name, forward_s, backward_s

    def forward(self, x: Tensor) -> Tensor:
        self.books.sleep(self.name, self.forward_s)
        x = x * self.weight
        return backward_sleep(x, self.books, self.name, self.backward_s) if self.backward_s else x


class Block(nn.Module):
    """Two layers and code of its own between them."""

    def __init__(self, books: Books, name: str) -> None:
        super().__init__()
        self.first = Slow(books, f"{name}.first", 0.007, 0.005)
        self.second = Slow(books, f"{name}.second", 0.005, 0.007)
        self.books, self.name = books, name

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.books.sleep(self.name, 0.005)
        return self.second(backward_sleep(x, self.books, self.name, 0.005))


class Net(nn.Module):
    """A block and a head, and between them code of nobody: `glue_s` forward and backward."""

    def __init__(self, books: Books, glue_s: float = 0.0) -> None:
        super().__init__()
        self.block = Block(books, "block")
        self.head = Slow(books, "head", 0.009, 0.009)
        self.books, self.glue_s = books, glue_s

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        if self.glue_s:
            self.books.sleep("glue", self.glue_s)
            x = backward_sleep(x, self.books, "glue", self.glue_s)
        return self.head(x)


class SlowRows(Dataset[Tensor]):
    def __init__(self, books: Books, seconds: float, rows: int = 64) -> None:
        self.books, self.seconds, self.rows = books, seconds, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, at: int) -> Tensor:
        if self.seconds:
            self.books.sleep("data", self.seconds)
        return torch.ones(4)


def train(model: nn.Module, books: Books, steps: int, *, data_s: float = 0.0, loss_s: float = 0.0) -> None:
    """Ordinary, with sleeps of known length in the loader, the loss, the optimizer and between them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    update = optimizer.step
    loader = iter(DataLoader(SlowRows(books, data_s, 4 * steps + 4), batch_size=1))
    for _ in range(steps):
        with books.step():
            x = next(loader)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if loss_s:
                books.sleep("loss", loss_s)
            loss.backward()
            update()
