"""Facts that wait for the disk: bounded, and written as they were told."""

from __future__ import annotations

import json
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


def test_a_fact_whose_fields_come_later_keeps_its_place(tmp_path: Path) -> None:
    known = {"type": "later", "wall_ns": 1, "n": 1}
    with TraceWriter(new_run(tmp_path), threaded=False) as writer:
        writer.fact("before")
        assert writer.late_fact("later", lambda: known, 0)
        writer.fact("after")
        known["n"] = 2
    with open_trace(tmp_path / "run") as trace:
        assert [fact["type"] for fact in trace.facts()] == ["before", "later", "after"]
        assert trace.facts("later")[0]["n"] == 2


def test_what_cannot_be_written_later_costs_no_other_fact(tmp_path: Path) -> None:
    class Silent:
        def __str__(self) -> str:
            raise ValueError("no")

    with TraceWriter(new_run(tmp_path), threaded=False) as writer:
        writer.late_fact("later", lambda: {"type": "later", "id": 3, "shape": (Silent(),)}, 0)
        writer.fact("after")
    assert not writer.late_fact("later", dict, 0)
    with open_trace(tmp_path / "run") as trace:
        assert [(fact["type"], fact.get("id")) for fact in trace.facts()] == [("later", 3), ("after", None)]


def test_facts_that_come_later_are_bounded_as_well() -> None:
    waiting = FactBuffer(100_000)
    taken = [waiting.put_later("later", dict, 600) for _ in range(200)]
    assert taken == [True] * 100 + [False] * 100
    assert waiting.dropped == 100


def test_lines_read_as_json_writes_them() -> None:
    waiting, itself = FactBuffer(100_000), []  # type: tuple[FactBuffer, list[object]]
    itself.append(itself)
    told = {"type": "é\ud800", "f": float("nan"), "none": None, "deep": {"a": [1, {2: (True,)}]}, "set": {2, 1}}
    waiting.put_whole(dict(told))
    told["set"] = [1, 2]
    assert waiting.oldest(1) == [json.dumps(told, separators=(",", ":")).encode()]
    with pytest.raises(ValueError, match="Circular"):
        waiting.put("x", {"itself": itself})
