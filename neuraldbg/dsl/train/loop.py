"""One training: batches on a device, with the bar that shows how far they are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from neuraldbg.dsl.build.built import Built
from neuraldbg.dsl.train.memory import free_on, need_memory
from neuraldbg.dsl.train.samples import Samples

Say = Callable[[str], None]
BAR = 24


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line adds to the file."""

    dataset: str | None = None
    device: str | None = None  # overrides that of the file
    epochs: int | None = None
    steps: int | None = None  # batches of an epoch
    batch: int | None = None
    seed: int = 0
    network: str | None = None
    bar: bool = False


@dataclass(slots=True)
class Trained:
    network: str
    model: Any
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def score(self) -> float:
        last = self.history[-1] if self.history else {}
        return float(last.get("val_loss", last.get("loss", float("inf"))))


def pick_device(asked: str | None, say: Say) -> str:
    """A device that is here: the one asked for, or the CPU, and said."""
    import torch

    wanted = (asked or "cpu").lower()
    wanted = "cuda" if wanted == "gpu" else wanted
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda"):
        index = int(wanted.partition(":")[2] or 0) if wanted.partition(":")[2].isdigit() or ":" not in wanted else 0
        if torch.cuda.is_available() and index < torch.cuda.device_count():
            return wanted
        say(f"{asked} is not here: the CPU is used")
        return "cpu"
    if wanted == "mps" and torch.backends.mps.is_available():
        return "mps"
    if wanted != "cpu":
        say(f"{asked} is not here: the CPU is used")
    return "cpu"


class Batches:
    """A loader whose batches come on the device; what a `for` loop of the model's own code goes through."""

    def __init__(self, loader: Any, device: str, *, steps: int | None, bar: Bar | None) -> None:
        self.loader, self.device, self.steps, self.bar = loader, device, steps, bar

    def __iter__(self) -> Iterator[Any]:
        total = len(self.loader) if self.steps is None else min(self.steps, len(self.loader))
        for number, batch in enumerate(self.loader):
            if number >= total:
                break
            if self.bar is not None:
                self.bar.show(number, total)
            yield batch if self.device == "cpu" else [each.to(self.device) for each in batch]
        if self.bar is not None:
            self.bar.clear()


class Bar:
    """One line that is written over; only for a terminal."""

    def __init__(self, epochs: int) -> None:
        self.epoch, self.epochs, self._last = 0, epochs, 0.0

    def show(self, done: int, total: int) -> None:
        self.epoch += done == 0
        now = time.monotonic()
        if now - self._last < 0.1:
            return
        self._last = now
        filled = BAR * done // max(total, 1)
        sys.stderr.write(f"\r  epoch {self.epoch}/{self.epochs} [{'#' * filled}{'.' * (BAR - filled)}] {done}/{total}")
        sys.stderr.flush()

    def clear(self) -> None:
        sys.stderr.write("\r\x1b[K")


def loaders(built: Built, samples: Samples, options: Options) -> tuple[Any, Any]:
    """Training and validation loaders; the latter None without a validation_split."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    arrays = [torch.as_tensor(array) for array in (*samples.inputs, samples.targets)]
    held = int(len(samples) * built.plan.validation_split)
    held = min(held, len(samples) - 1)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(options.seed))
    kept, apart = order[held:], order[:held]
    size = options.batch or built.plan.batch_size
    data = TensorDataset(*(array[kept] for array in arrays))
    lonely = len(kept) > 1 and len(kept) % size == 1  # a batch of one breaks BatchNormalization
    mixing = torch.Generator().manual_seed(options.seed)
    loader = DataLoader(
        data, batch_size=size, shuffle=built.plan.shuffle, generator=mixing, drop_last=lonely and size > 1
    )
    if not held:
        return loader, None
    return loader, DataLoader(TensorDataset(*(array[apart] for array in arrays)), batch_size=size)


def train(built: Built, samples: Samples, options: Options, say: Say, *, name: str | None = None) -> Trained:
    """`name` is what the model's own code calls it, where the file has several networks."""
    import torch

    torch.manual_seed(options.seed)
    device = pick_device(options.device or built.graph.network.device, say)
    free = free_on(device)
    if free is not None:
        batch = min(options.batch or built.plan.batch_size, len(samples))
        need_memory(built.graph, built.plan, batch, free)
    model = built.make().to(device)
    if name is not None:
        built.namespace.setdefault(name, model)
    loader, apart = loaders(built, samples, options)
    epochs = options.epochs or built.plan.epochs
    bar = Bar(epochs) if options.bar else None
    batches = Batches(loader, device, steps=options.steps, bar=bar)
    validation = None if apart is None else Batches(apart, device, steps=options.steps, bar=None)
    done = Trained(built.graph.network.name, model)

    def report(told: dict[str, float]) -> None:
        done.history.append(told)
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in told.items() if name != "epoch")
        say(f"epoch {told['epoch']}/{epochs}: {numbers}")

    built.train(model, batches, validation, epochs=epochs, report=report)
    if len(done.history) < epochs:
        say(f"stopped early after epoch {len(done.history)}: the loss no longer fell")
    return done
