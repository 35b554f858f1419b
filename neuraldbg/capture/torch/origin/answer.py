"""What a search for the first NaN found, and how it is written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neuraldbg.capture.torch.origin.graph import Suspect, op_named
from neuraldbg.capture.torch.origin.localiser import Event
from neuraldbg.capture.torch.origin.values import largest
from neuraldbg.capture.torch.recorder import Recorder

WRITING = ("copy", "fill", "full", "index_put", "index_fill", "masked_fill", "lift_fresh_copy", "scalar_tensor")
CHAIN = 12  # links that are written down: the first and the last


@dataclass
class Answer:
    where: str  # "input", "forward", "loss", "backward", "parameter", "update"
    method: str  # "look", "replay", "graph", "armed", "late"
    op: str | None = None
    node: str | None = None
    layer: int | None = None  # site
    source: str | None = None
    inputs: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)
    wide: dict[str, Any] | None = None
    chain: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def sure(self) -> bool:
        """Whether the operation, or the tensor that came in bad, is known."""
        return self.op is not None or self.where in ("input", "parameter", "update")

    def fields(self, recorder: Recorder) -> dict[str, Any]:
        finite = all(not one.get("nan") and not one.get("inf") for one in self.inputs)
        return {
            "where": self.where,
            "method": self.method,
            "op": self.op,
            "node": self.node,
            "layer": None if self.layer is None else recorder.sites[self.layer].path,
            "layer_site": self.layer,
            "source": self.source,
            "inputs": self.inputs,
            "outputs": self.output,
            "saved": self.saved,
            "in_float32": self.wide,
            "chain": self.chain if len(self.chain) <= CHAIN else self.chain[: CHAIN // 2] + self.chain[-CHAIN // 2 :],
            "inputs_finite": finite,
            "largest_input": largest([*self.inputs, *(v for v in self.saved.values() if isinstance(v, dict))]),
            **self.more,
        }


def from_chain(chain: list[Event], method: str, recorder: Recorder) -> Answer:
    """The operation where it began, and those that passed it on."""
    masked = [one for one in chain if one.harmless]
    first = next((one for one in chain if not one.harmless), chain[0])
    links = [_link(one, recorder) for one in (*masked[-1:], *(one for one in chain if not one.harmless))]
    if first.outside:
        where = "input" if first.op.startswith("input ") else "parameter" if first.op != "a constant" else "forward"
        return Answer(where, method, output=first.output, chain=links, more={"tensor": first.op})
    where = "backward" if first.node else "forward" if first.layer is not None else "loss"
    if first.op.strip("_") in WRITING and not first.node:
        written = Answer("input", method, source=first.source, output=first.output, chain=links)
        written.more = {"tensor": "a tensor that the script writes to"}
        return written
    return Answer(
        where,
        method,
        first.op.strip("_") if first.node is None else op_named(first.node),
        first.node,
        first.layer,
        first.source,
        first.inputs,
        first.output,
        first.saved,
        first.wide,
        links,
        {"after_site": first.after} if first.after is not None else {},
    )


def _link(event: Event, recorder: Recorder) -> dict[str, Any]:
    return {
        "op": event.node or event.op,
        "layer": None if event.layer is None else recorder.sites[event.layer].path,
        "source": event.source,
        "nan": event.output.get("nan"),
        "inf": event.output.get("inf"),
    }


def from_suspect(suspect: Suspect, line: str | None) -> Answer:
    where = "backward" if suspect.backward and not suspect.forward else "forward" if suspect.in_model else "loss"
    links = [{"op": op, "layer": None, "source": None, "nan": None, "inf": None} for op in suspect.above]
    first = {"op": suspect.op, "layer": None, "source": line, "nan": None, "inf": None}
    answer = Answer(where, "graph", suspect.op, suspect.node, source=line, inputs=suspect.inputs)
    if suspect.wide is not None:
        answer.wide, answer.output = suspect.wide, {"dtype": "float16"}
    answer.chain = [first, *links]
    return answer
