"""The analysis of a run while it trains: in the viewer, every few seconds, for at most a sixteenth of a core. A look at
a long run takes long and comes seldom; a loss that is no longer finite is seen by a glance in between.

A run that is over before the first look costs nothing: numpy is imported when there is something to analyse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.control.channel import channel
from neuraldbg.errors import ChannelError, NeuralDbgError
from neuraldbg.records import SiteKind

if TYPE_CHECKING:
    from neuraldbg.analysis.anomalies import AnomalyWatch
    from neuraldbg.trace import Trace

FIRST_LOOK_S = 4.0
LEAST_PAUSE_S = 2.0
REST = 15  # times as long as the last look took
GLANCE_S = 2.0
WORTH_SAYING_S = 20.0  # that all ranks stand still: a checkpoint takes a while, too
STANDSTILLS = ("rank_divergence", "gradient_not_synchronised")
EAGER = {"first_look_s": 3.0, "least_pause_s": 2.0, "rest": 10}  # where a run is to stop for what is found
# what half-written files may lead to; the report at the end looks again, at whole ones
NOT_READABLE = (NeuralDbgError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
_LASTING = ("kind", "severity", "step", "layer", "op", "source", "rank")


class LiveAnalysis:
    """Looks at a growing run and appends what it finds to `findings.jsonl`."""

    def __init__(
        self,
        run_dir: Path,
        *,
        first_look_s: float = FIRST_LOOK_S,
        least_pause_s: float = LEAST_PAUSE_S,
        rest: float = REST,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.run_dir = run_dir
        self._say = say
        self.watch: AnomalyWatch | None = None
        self.headline: str | None = None  # of a run that has something above info
        self._least_pause_s, self._rest = least_pause_s, rest
        self._due_s = self._glance_s = time.monotonic() + first_look_s
        self._grown = self._alarmed = False  # since the last look; the loss was not finite
        self._glanced: int | None = None  # the last step that a glance has seen
        self._trace: Trace | None = None
        self._told: dict[str, Mapping[str, Any]] = {}
        self._seen: set[str] = set()  # ids of the last look
        self._broken_on: set[str] = set()  # kinds that the trainer was told of
        self._said_standing = False
        self._stacked: int | None = None  # the step of the standstill that was looked at from outside

    def wait_s(self) -> float:
        """Until the next look or glance is due; 0 when it is."""
        return max(0.0, min(self._due_s, self._glance_s) - time.monotonic())

    def tend(self) -> None:
        """The look or the glance that is due."""
        if time.monotonic() >= self._due_s or self._alarm():
            self.look()
        self._glance_s = time.monotonic() + GLANCE_S

    def look(self) -> None:
        """Never fails: what cannot be read now is looked at again later."""
        began = time.monotonic()
        try:
            if self._grew() or self._grown:
                self._grown = False
                self._analyse()
        except NOT_READABLE:
            self._trace = None
        now = time.monotonic()
        self._due_s = now + max(self._least_pause_s, self._rest * (now - began))

    def _alarm(self) -> bool:
        """Whether the loss has just stopped being finite: worth a look before it is due, once."""
        try:
            self._grown = self._grew() or self._grown
            told = self._new_losses() if self._grown and not self._alarmed else []
        except NOT_READABLE:
            return False
        self._alarmed = self._alarmed or not all(map(math.isfinite, told))
        return self._alarmed and bool(told)

    def _new_losses(self) -> list[float]:
        assert self._trace is not None
        since, self._glanced = self._glanced, self._trace.last_step
        sites = [site for site in self._trace.sites if site.kind is SiteKind.SERIES and site.path == "loss"]
        return [
            value for site in sites for value in self._trace.table("scalars", ("value",), (since, None), site)["value"]
        ]

    def _grew(self) -> bool:
        from neuraldbg.trace import open_trace

        if self._trace is None:
            self._trace = open_trace(self.run_dir)
            return True
        return self._trace.refresh()

    def _analyse(self) -> None:
        from neuraldbg.analysis.anomalies.watch import settled_step, watch_of
        from neuraldbg.analysis.findings import strict
        from neuraldbg.analysis.summary import summarise
        from neuraldbg.trace.findings import write_findings

        assert self._trace is not None
        summary = summarise(self._trace, alive=True, ongoing=True)
        findings = [self._as_told(strict(one)) for one in self._confirmed(summary.findings)]
        if write_findings(self.run_dir, findings):
            self._told = {one["id"]: one for one in findings}
        self.headline = _headline(findings)
        self._tell_trainer(findings)
        self._look_from_outside(findings)
        self.watch = self.watch or watch_of(self._trace)
        self.watch.look(self._trace, through=settled_step(self._trace))
        self._trace.rollups.update()

    def _look_from_outside(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """At ranks that all stand still, once; the next look tells of their stacks."""
        from neuraldbg.analysis.ranks import processes
        from neuraldbg.surfaces.stacks import take_stacks
        from neuraldbg.trace.rundir import write_stacks

        stood = [one for one in findings if one["kind"] in STANDSTILLS and "seconds" in one["evidence"]]
        self._tell_standstill(stood[0] if stood else None)
        if not stood or stood[0]["step"] == self._stacked:
            return
        assert self._trace is not None
        self._stacked, ranks = stood[0]["step"], processes(self._trace).values()
        write_stacks(self.run_dir, take_stacks(ranks, stood[0]["step"], first=stood[0]["rank"]))
        self._told.pop(stood[0]["id"], None)
        self._grown = True

    def _tell_standstill(self, stood: Mapping[str, Any] | None) -> None:
        """Where nobody moves, nothing else would ever be said."""
        lasts = stood is not None and stood["evidence"]["seconds"] >= WORTH_SAYING_S
        if lasts and not self._said_standing and stood is not None:
            self._say(stood["summary"])
        elif stood is None and self._said_standing:
            self._say("the ranks move again")
        self._said_standing = lasts or (self._said_standing and stood is not None)

    def _tell_trainer(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """What --break-on asked for stops the run at its next step."""
        assert self._trace is not None
        wanted = set(self._trace.run.settings.get("break_on") or ()) - self._broken_on
        for one in (one for one in findings if one["kind"] in wanted):
            self._broken_on.add(one["kind"])
            try:
                with channel(self.run_dir) as line:
                    line.call("found", kind=one["kind"], summary=one["summary"])
            except ChannelError:
                return  # no trainer, or one that cannot be held

    def _confirmed(self, found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """A warning must be found by two looks in a row: one alone may have fallen into the middle of a step."""
        before, self._seen = self._seen, {one["id"] for one in found}
        return [one for one in found if one["severity"] != "warning" or one["id"] in before]

    def _as_told(self, one: Mapping[str, Any]) -> Mapping[str, Any]:
        """Numbers grow with every step: a finding is written again when it says something else, and at the end."""
        before = self._told.get(one["id"])
        same = before is not None and all(before.get(name) == one.get(name) for name in _LASTING)
        return before if same and before is not None else one


def _headline(findings: Sequence[Mapping[str, Any]]) -> str | None:
    loud = [one for one in findings if one["severity"] in ("warning", "critical")]
    return f"{loud[0]['severity']}: {loud[0]['kind']}" if loud else None
