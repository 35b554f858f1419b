"""What causes and symptoms are judged by: the recorded run behind a few questions, each answered once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.ranks import main_rank, run_of_main
from neuraldbg.records import Call, Kind, RunInfo, Site, SiteKind
from neuraldbg.trace.tables import CALL_CODE, KIND_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

T = TypeVar("T")
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Absolute limits, only where the user gave them: everything else is judged relative to the run itself."""

    vanishing: float | None = None
    exploding: float | None = None
    activation: float | None = None


def thresholds_of(run: RunInfo) -> Thresholds:
    """As they were given when the run was started."""
    known = {name: run.settings.get(name) for name in ("vanishing", "exploding", "activation")}
    return Thresholds(**{name: value for name, value in known.items() if isinstance(value, int | float)})


@dataclass(frozen=True, slots=True)
class Curve:
    """A series over the steps, in order of recording."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    def __bool__(self) -> bool:
        return len(self.values) > 0


class Evidence:
    """One run, as the detectors and causes see it. Nothing here judges; what was not recorded is empty or None."""

    def __init__(self, trace: Trace, thresholds: Thresholds | None = None, *, rank: int | None = None) -> None:
        self.trace = trace
        self._of_rank = rank  # another than the one that speaks for all
        self.thresholds = thresholds or thresholds_of(trace.run)
        self.unchecked: dict[str, str] = {}  # id -> why it could not be checked in this run
        self._kept: dict[Any, Any] = {}

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """The same value for every asker: for what several causes derive from the trace."""
        if key not in self._kept:
            self._kept[key] = compute()
        value: T = self._kept[key]
        return value

    def cannot(self, kind: str, why: str) -> None:
        """Say that one id could not be checked: a healthy verdict names it."""
        self.unchecked.setdefault(kind, why)

    # -- the run ---------------------------------------------------------------------------------------------------

    @cached_property
    def run(self) -> RunInfo:
        return run_of_main(self.trace)

    @cached_property
    def rank(self) -> int | None:
        return main_rank(self.trace) if self._of_rank is None else self._of_rank

    def facts(self, type: str) -> list[dict[str, Any]]:
        """Of the main process, in order."""
        return self.once(("facts", type), lambda: [f for f in self.trace.facts(type) if f.get("rank", 0) == self.main])

    @cached_property
    def main(self) -> int:
        return 0 if self.rank is None else self.rank

    def fact(self, type: str) -> dict[str, Any] | None:
        """The last one of its type."""
        found = self.facts(type)
        return found[-1] if found else None

    def probe(self, name: str) -> dict[str, Any] | None:
        """The last experiment of a name that was made after the run; None where none was."""
        ran = [fact for fact in self.facts("probe") if fact.get("name") == name and not fact.get("skipped")]
        return ran[-1] if ran else None

    def why_no_probe(self, name: str) -> str:
        skipped = [fact["skipped"] for fact in self.facts("probe") if fact.get("name") == name and fact.get("skipped")]
        return str(skipped[-1]) if skipped else "no probe was run"

    # -- sites -----------------------------------------------------------------------------------------------------

    @cached_property
    def sites(self) -> dict[int, Site]:
        return {site.id: site for site in self.trace.sites_of(self.main)}

    def of_kind(self, kind: SiteKind) -> list[Site]:
        return [site for site in self.sites.values() if site.kind is kind]

    def name(self, site: Site | int | None) -> str | None:
        """The one name shown for a site; None for none."""
        number = site.id if isinstance(site, Site) else site
        return None if number is None or number not in self.sites else self.trace.canonical(number)

    def layer_of(self, parameter: Site | int) -> str | None:
        """The canonical path of the module that owns a parameter."""
        site = self.sites.get(parameter) if isinstance(parameter, int) else parameter
        name = self.name(site)
        if name is None or site is None:
            return None
        path = name.rpartition(".")[0]
        return path or (self.name(site.model) if site.model is not None else None)

    def parameters_of(self, model: int) -> list[Site]:
        return [site for site in self.of_kind(SiteKind.PARAMETER) if site.model == model]

    # -- the ledger ------------------------------------------------------------------------------------------------

    @cached_property
    def calls(self) -> Columns:
        """The whole ledger of the main process in order: step, seq, site, pass_id, call, value, aux, digest, source,
        wall_ns, duration_ns."""
        return self._main_rows("calls")

    def of_call(self, *calls: Call, site: int | None = None) -> Columns:
        """The entries of some calls, in order, optionally about one site."""
        codes = [CALL_CODE[call] for call in calls]
        chosen = np.isin(self.calls["call"], codes)
        if site is not None:
            chosen &= self.calls["site"] == site
        return {name: column[chosen] for name, column in self.calls.items()}

    def count(self, *calls: Call, site: int | None = None) -> int:
        return len(self.of_call(*calls, site=site)["step"])

    @cached_property
    def updates(self) -> int:
        return self.count(Call.STEP, Call.STEP_MANUAL) + int(self.trace.evicted_of(self.main).get("updates", 0))

    @cached_property
    def backwards(self) -> int:
        return self.count(Call.BACKWARD) + int(self.trace.evicted_of(self.main).get("backwards", 0))

    @cached_property
    def last_step(self) -> int:
        return max(self.updates - 1, 0)

    def source(self, number: int | None) -> str | None:
        """`train.py:42` of a source id; None for -1."""
        return None if number is None else self._sources.get(int(number))

    @cached_property
    def _sources(self) -> dict[int, str]:
        return {fact["id"]: f"{fact['file']}:{fact['line']}" for fact in self.facts("source")}

    def line_of(self, call: Call, *, site: int | None = None) -> str | None:
        """Where the script makes a call: the line that made it most often."""
        sources = self.of_call(call, site=site)["source"]
        known, counts = np.unique(sources[sources >= 0], return_counts=True)
        return self.source(int(known[counts.argmax()])) if len(known) else None

    def text(self, file: str) -> str | None:
        """The user's file as it was when the run began."""
        return next((fact["text"] for fact in self.facts("source_file") if fact["file"] == file), None)

    # -- numbers ---------------------------------------------------------------------------------------------------

    def curve(self, series: str) -> Curve:
        """A recorded series such as "loss", "loss.0", "lr", "grad_norm", "rss_bytes"; empty when there is none."""
        return self.once(("curve", series), lambda: self._curve(series))

    def _curve(self, series: str) -> Curve:
        site = next((s.id for s in self.of_kind(SiteKind.SERIES) if s.path == series), None)
        if site is None:
            return Curve(np.empty(0, np.int64), np.empty(0, np.float64))
        chosen = self._scalars["site"] == site
        return Curve(self._scalars["step"][chosen], self._scalars["value"][chosen])

    @cached_property
    def _scalars(self) -> Columns:
        return self._main_rows("scalars")

    def stats(self, kind: Kind, site: int | Sequence[int] | None = None) -> Columns:
        """Recorded statistics of one kind, in order: step, seq, site, pass_id, phase, slot, count, mean, std, min, max,
        l2, zero_count, nan_count, inf_count, digest."""
        columns = self.once(("stats", kind), lambda: self._of_kind(kind))
        if site is None:
            return columns
        chosen = np.isin(columns["site"], site)
        return {name: column[chosen] for name, column in columns.items()}

    def _of_kind(self, kind: Kind) -> Columns:
        chosen = self._stats["kind"] == KIND_CODE[kind]
        return {name: column[chosen] for name, column in self._stats.items()}

    @cached_property
    def _stats(self) -> Columns:
        return self._main_rows("stats")

    @cached_property
    def spans(self) -> Columns:
        return self._main_rows("spans")

    def _main_rows(self, table: str) -> Columns:
        rows = self.trace.table(table)
        chosen = np.flatnonzero(rows["rank"] == self.main)
        order = chosen[np.argsort(rows["seq"][chosen], kind="stable")]
        return {name: column[order] for name, column in rows.items()}

    @cached_property
    def sampled_steps(self) -> NDArray[np.int64]:
        """Steps that were measured in full."""
        return np.unique(self.stats(Kind.ACTIVATION)["step"])
