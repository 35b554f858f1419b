"""A real capture around a few lines of training, and what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuraldbg import Trace, open_trace
from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.records import Call, Kind
from neuraldbg.trace import TraceWriter, create_run
from neuraldbg.trace.rundir import new_run_info
from neuraldbg.trace.tables import CALL_CODE, KIND_CODE


@contextmanager
def watching(folder: Path, **options: Any) -> Iterator[TorchCapture]:
    """Watches this process, by default in full and strictly: our own exceptions come through. Writes `folder / run`."""
    run = create_run(new_run_info(("train.py",), script="train.py", budget="full"), out=folder / "run")
    with TraceWriter(run) as writer:
        capture = TorchCapture(lambda: writer, Options(**{"budget": None, "strict": True, **options}))
        try:
            yield capture
        finally:
            capture.close()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def train(model: nn.Module, steps: int = 3, after: Callable[[int], None] | None = None) -> list[float]:
    """An ordinary loop; the losses, to be compared bit for bit."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if after is not None:
            after(step)
    return losses


def trace_of(folder: Path) -> Trace:
    return open_trace(folder / "run")


def calls(folder: Path) -> list[Call]:
    """The ledger of a finished capture, in order."""
    name = {code: call for call, code in CALL_CODE.items()}
    with trace_of(folder) as trace:
        rows = trace.table("calls", columns=["call", "seq"])
    return [name[code] for _, code in sorted(zip(rows["seq"].tolist(), rows["call"].tolist(), strict=True))]


def facts(folder: Path, kind: str) -> list[dict[str, Any]]:
    with trace_of(folder) as trace:
        return trace.facts(kind)


def measured_paths(folder: Path, kind: Kind) -> set[str]:
    """Layers or parameters that have statistics of one kind."""
    with trace_of(folder) as trace:
        rows = trace.table("stats", columns=["kind", "site"])
        paths = {site.id: site.path for site in trace.sites}
    return {paths[site] for site, code in zip(rows["site"].tolist(), rows["kind"].tolist(), strict=True)
            if code == KIND_CODE[kind]}  # fmt: skip
