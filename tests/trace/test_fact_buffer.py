"""Facts that wait for the disk: bounded, and written as they were told."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_making import new_run

from neuraldbg.trace import TraceWriter, open_trace
from neuraldbg.trace.facts import FactBuffer


def test_a_fact_that_cannot_be_written_is_its_tellers_mistake(tmp_path: Path) -> None:
    """Not that of the thread which writes all the others."""
    with TraceWriter(new_run(tmp_path)) as writer:
        with pytest.raises(ValueError, match="digits"):
            writer.fact("x", n=10**5000)
        with pytest.raises(ValueError, match="digits"):
            writer.fact("x", many=[1, 10**5000])
        writer.fact("y", n=1)
    with open_trace(tmp_path / "run") as trace:
        assert [fact["type"] for fact in trace.facts() if fact["type"] in "xy"] == ["y"]


def test_long_lists_count_as_what_they_are() -> None:
    waiting = FactBuffer(100_000)
    for number in range(200):
        waiting.put("names", {"of": [f"layer.{number}.{part}" for part in range(2000)]})
    assert len(waiting) == 3
    assert waiting.dropped == 197
