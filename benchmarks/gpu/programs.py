"""What the sections of `all.py` share: GPT-2 and its training loop, watched or not, and how results are written."""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.records import RunInfo
from neuraldbg.trace import TraceWriter, create_run, open_trace
from neuraldbg.trace.tables import KIND_CODE

IN_FULL = 21  # updates after which the budget rules


@dataclass(frozen=True)
class Size:
    """124 million parameters, B = 32, T = 1024; or something that a laptop can run."""

    vocab: int = 50257
    width: int = 768
    heads: int = 12
    layers: int = 12
    batch: int = 32
    length: int = 1024
    device: str = "cuda"


GPT2 = Size()
DRY = Size(vocab=101, width=32, heads=2, layers=2, batch=2, length=16, device="cpu")


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.act, self.back = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.back(self.act(self.wide(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocab, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList([Block(size) for _ in range(size.layers)])
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Training:
    """The loop of a user: it never waits for the device by itself."""

    def __init__(self, size: Size, *, compiled: bool = False) -> None:
        torch.manual_seed(0)
        self.size = size
        with torch.device(size.device):
            self.model = GPT(size)
        self.call: Callable[[Tensor], Tensor] = torch.compile(self.model) if compiled else self.model
        fused = size.device == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=fused)
        self.ids = torch.randint(0, size.vocab, (8, size.batch, size.length + 1), device=size.device)
        self.done = 0

    def step(self) -> Tensor:
        ids = self.ids[self.done % len(self.ids)]
        self.done += 1
        self.optimizer.zero_grad()
        with torch.autocast(self.size.device, dtype=torch.bfloat16):
            logits = self.call(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, steps: int) -> list[Tensor]:
        return [self.step() for _ in range(steps)]

    def timed(self, steps: int) -> float:
        """Milliseconds of one step, over as many without a wait in between. Python's full collection of garbage, a
        tenth of a second or two that fall into one stretch or another, is had before, in every arm alike."""
        gc.collect()
        wait(self.size)
        start = time.perf_counter()
        self.run(steps)
        wait(self.size)
        return (time.perf_counter() - start) / steps * 1e3


def wait(size: Size) -> None:
    if size.device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def watched(budget: float | None, **options: Any) -> Iterator[tuple[TorchCapture, Path]]:
    info = RunInfo(id="gpu", command=(), backend="pytorch", versions={}, started="")
    run = create_run(info, out=Path(tempfile.mkdtemp()) / "run")
    with TraceWriter(run) as writer:
        capture = TorchCapture(lambda: writer, Options(budget=budget, strict=True, **options))
        try:
            yield capture, run
        finally:
            capture.close(exit_code=0)


def steps(size: Size, count: int) -> int:
    return count if size.device == "cuda" else 2


def name_of(size: Size) -> str:
    return torch.cuda.get_device_name() if size.device == "cuda" else "host, dry run"


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def rows_of(run: Path) -> dict[str, Any]:
    """Rows of the last step but one, by kind."""
    with open_trace(run) as trace:
        table = trace.table("stats")
        kinds = {code: kind.value for kind, code in KIND_CODE.items()}
        last = int(table["step"].max()) - 1
        counts = Counter(kinds[int(kind)] for kind in table["kind"][table["step"] == last].tolist())
        return {**counts, "dropped": sum(trace.dropped.values()) if isinstance(trace.dropped, dict) else trace.dropped}


def interval(values: list[float]) -> dict[str, Any]:
    """Median, and the middle 95 % of medians of samples drawn again."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return {"median": statistics.median(values), "low": medians[25], "high": medians[-26], "all": values}


class Results:
    """Written after every number, so that a section that dies leaves what it had."""

    def __init__(self, section: str) -> None:
        self._path = Path(os.environ.get("OUT") or tempfile.gettempdir()) / f"gpu-{section}.json"
        self._found: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        self._found[name] = value
        self._path.write_text(json.dumps(self._found, indent=1, default=str))
        print(f"  {name}: {_told(value)}", flush=True)


def _told(value: Any) -> str:
    if isinstance(value, dict) and {"median", "low", "high"} <= set(value):
        return f"{value['median']:.4f} ({value['low']:.4f}-{value['high']:.4f})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
