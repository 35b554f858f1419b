"""What tests of layers that C sees share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from watching import trace_of

from neuraldbg.capture.kernels import host

STEPS = 40
LOOKED, QUICK = 5, 37  # one of the first ones, of which evidence is gathered; one of which it is not

seen_by_c = pytest.mark.skipif(
    getattr(host.fused, "Layers", None) is None, reason="no kernel, or not on Linux: Python sees every layer"
)


@pytest.fixture
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """C steps aside for good where torch.compile was called, as other tests of this process do."""
    monkeypatch.setattr("neuraldbg.capture.torch.quick.compiled", lambda: False)
    monkeypatch.setattr("neuraldbg.capture.torch.dispatch.compiled", lambda: False)


class Odd(nn.Module):
    """Outputs that C leaves to Python, beside one that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(4, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.rnn(self.wide(x).unsqueeze(1))
        out: Tensor = self.last(hidden[:, -1])
        return out


Rows = list[dict[str, Any]]


def table(folder: Path, name: str, step: int) -> Rows:
    """The rows of one step, with the path of their site."""
    with trace_of(folder) as trace:
        columns = {key: values.tolist() for key, values in trace.table(name).items()}
        paths = {site.id: site.path for site in trace.sites}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [{**row, "path": paths[row["site"]]} for row in rows if row["step"] == step]


def by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.quick.QuickLayers.begin", lambda *_: False)
