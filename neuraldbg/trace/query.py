"""Questions to a trace: one layer's history, a step, the first bad row, the worst layers, a heatmap, what is new."""

from __future__ import annotations

import copy
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import UnknownName
from neuraldbg.records import Kind, Site, SiteKind
from neuraldbg.trace.findings import read_findings
from neuraldbg.trace.heatmap import Heatmap, pooled
from neuraldbg.trace.merge import MergedRanks, TracedRun
from neuraldbg.trace.pieces import Rollups
from neuraldbg.trace.rows import Rows
from neuraldbg.trace.selection import Hit, Selection, Span, narrowed
from neuraldbg.trace.tables import CALL_CODE, KIND_CODE, PHASE_CODE, TABLES
from neuraldbg.trace.tails import Tail, Tails

_TABLE_OF_KIND: Final = {Kind.SPAN: "spans", Kind.SCALAR: "scalars", Kind.MARK: "calls"}
_PREFERRED_SITE: Final = {Kind.SCALAR: SiteKind.SERIES, Kind.TARGET: SiteKind.LOSS}
_OF_PARAMETERS: Final = (Kind.PARAMETER, Kind.UPDATE)
_EVERYTHING: Final[Span] = (None, None)
_NEARBY: Final = 1000  # steps


@dataclass(frozen=True, slots=True)
class News:
    """What `follow` saw since the last time."""

    tables: Mapping[str, Rows]
    facts: Sequence[Mapping[str, Any]]


class Trace:
    """A recorded run, finished or still going. Opened by `open_trace`; reading never disturbs the writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ranks = MergedRanks(path)
        self._window = _EVERYTHING
        self._unpacked: weakref.finalize[..., MergedRanks] | None = None
        self.rollups = Rollups(path, self._ranks)
        self._tails = Tails(self._ranks)
        self.refresh()

    def refresh(self) -> bool:
        """Picks up what was recorded since; True when there was something."""
        return self._ranks.refresh()

    def close(self) -> None:
        """Lets the files go. A second call does nothing."""
        self.rollups.close()
        self._ranks.forget()
        if self._unpacked is not None:
            self._unpacked()

    def remove_with(self, folder: str) -> None:
        """The folder this trace was unpacked into goes when the trace does."""
        self._unpacked = weakref.finalize(self._ranks, shutil.rmtree, folder, ignore_errors=True)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def run(self) -> TracedRun:
        """What is known of the run as a whole."""
        return self._ranks.run

    @property
    def ended(self) -> bool:
        """Whether it said that it was over."""
        return self._ranks.run.ended

    @property
    def damage(self) -> str | None:
        """What could not be read, in words; None for a sound trace."""
        return self._ranks.damage

    @property
    def dropped(self) -> dict[str, int]:
        """Rows the writer could not keep up with or had no space for, by table."""
        return self._ranks.counted("dropped")

    @property
    def evicted(self) -> dict[str, int]:
        """Rows of the oldest segments, deleted to stay under the disk limit, by table."""
        return self._ranks.counted("evicted")

    def evicted_of(self, rank: int) -> dict[str, int]:
        """The same, of one folder."""
        return self._ranks.counted("evicted", rank)

    @property
    def ranks(self) -> list[int]:
        """The folders that are there, one for each process."""
        return list(self._ranks.views)

    @property
    def sites(self) -> list[Site]:
        """Layers, parameters and the other places that rows belong to."""
        return list(self._ranks.sites.values())

    @property
    def steps(self) -> NDArray[np.int64]:
        """Every step that left a row, in order."""
        found = [np.empty(0, np.int64)]
        for table in TABLES:
            selection = self.selection(table)
            for hit in selection.hits():
                steps = selection.steps(hit)
                found.append(np.unique(steps[np.r_[True, steps[1:] != steps[:-1]]]))  # neighbours first: 10x faster
        return np.unique(np.concatenate(found))

    @property
    def last_step(self) -> int | None:
        """The newest step that left a row."""
        return max((step for step in map(self.last_step_in, TABLES) if step is not None), default=None)

    def last_step_in(self, table: str) -> int | None:
        """The newest step that a table has a row of, in the window of this view; None where it has none."""
        low, high = self._window
        if low is None and high is None and self._ranks.steps_kind == "update":
            ends = (chunk.step_max for view in self._ranks.views.values() for chunk in view.reader.chunks[table])
            return max(ends, default=None)
        steps = self.table(table, ("step",))["step"]
        return int(steps.max()) if len(steps) else None

    def site(self, name: str) -> Site:
        """The site of a canonical name or alias; UnknownLayer names the nearest otherwise."""
        return self._ranks.names.resolve(name)

    def match(self, pattern: str) -> list[Site]:
        """The layers a name, glob or regular expression means."""
        return self._ranks.names.match(pattern)

    def site_of(self, number: int) -> Site:
        """The site of an id; one whose fact was lost still has its number."""
        return self._ranks.site(number)

    def canonical(self, site: Site | int) -> str:
        """The one name we show for a site."""
        return self._ranks.name(site if isinstance(site, int) else site.id)

    def aliases(self, site: Site | int) -> list[str]:
        """Other names it answers to."""
        return self._ranks.names.aliases(site)

    def facts(self, type: str | None = None) -> list[dict[str, Any]]:
        """The recorded facts of a type, in order, each with its `rank`."""
        return list(self._ranks.facts if type is None else self._ranks.facts_of.get(type, ()))

    def told(self, type: str) -> list[dict[str, Any]]:
        """The facts of a type that were recorded by the last step of this view: of what is summed up while a run goes
        on, the later ones tell of more than that."""
        end_ns = self._end_ns()
        return [fact for fact in self.facts(type) if end_ns is None or fact.get("wall_ns", 0) <= end_ns]

    def findings(self) -> list[dict[str, Any]]:
        """What the analysis found so far; a later entry replaces the one of the same id."""
        return [entry for entry in read_findings(self.path) if not entry.get("withdrawn")]

    def between(self, first: int | None, last: int | None) -> Trace:
        """The same trace, seen only from step `first` to `last`, both included."""
        view = copy.copy(self)
        view._window = narrowed(self._window, (first, last))
        return view

    def tails(self, series: Sequence[str], steps: int) -> dict[int, Tail]:
        """The last values of some series in every process, up to the end of this view, however long the run is."""
        return self._tails.of_each(series, steps, until=self._window[1])

    def sites_of(self, rank: int) -> list[Site]:
        """Those that one process has told of."""
        view = self._ranks.views.get(rank)
        known = set() if view is None else set(view.global_of.values())
        return [site for site in self._ranks.sites.values() if site.id in known]

    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        between: Span | None = None,
        site: int | Site | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Columns of a table over all ranks (rank by rank, as written); `rank` says whose row it is."""
        selection = self.selection(name, between)
        wanted = None if site is None else [site if isinstance(site, int) else site.id]
        return selection.gather(list(selection.hits(sites=wanted)), columns)

    def history(
        self,
        layer: str | Site,
        kind: Kind | str = "gradient",
        field: str | Sequence[str] | None = None,
        between: Span | None = None,
    ) -> Rows:
        """What was recorded of one layer over time; a series such as "loss" gives its values.

        Parameters and updates of a module are those of its own parameters: `.layers` tells them apart.
        """
        kind = _kind(kind)
        if isinstance(layer, str):
            layer = self._ranks.names.resolve(layer, prefer=_PREFERRED_SITE.get(kind))
        if layer.kind is SiteKind.SERIES:
            kind = Kind.SCALAR
        wanted = self.site_ids(layer, kind)
        fields = [field] if isinstance(field, str) else field
        columns = None if fields is None else ["step", "seq", "site", "rank", *fields]
        return self._of_kind(kind, between, sites=wanted, columns=columns)

    def site_ids(self, layer: str | Site, kind: Kind) -> list[int]:
        """The sites whose rows of a kind are a layer's: its own, and those of its parameters."""
        if isinstance(layer, str):
            layer = self._ranks.names.resolve(layer, prefer=_PREFERRED_SITE.get(kind))
        wanted = [twin.id for twin in self._ranks.names.twins(layer)]
        if kind in _OF_PARAMETERS and layer.kind is not SiteKind.PARAMETER:
            wanted += [site.id for site in self._own_parameters(layer)]
        return wanted

    def at(self, step: int, kind: Kind | str | None = None) -> Rows:
        """Every row of one step: statistics of all kinds, or those of one kind."""
        if kind is not None:
            return self._of_kind(_kind(kind), (step, step))
        selection = self.selection("stats", (step, step))
        return self._rows(selection, list(selection.hits()))

    def first(self, where: Callable[[Mapping[str, Any]], object], *, table: str = "stats") -> dict[str, Any] | None:
        """The earliest row (by step, then order of recording) that `where` accepts; None where there is none."""
        best: dict[str, Any] | None = None
        selection = self.selection(table)
        for hit in selection.hits():
            if best is not None and self._ranks.first_step(hit.rank, hit.chunk) > best["step"]:
                continue
            records = list(self._rows(selection, [hit]).records())
            for record in sorted(records, key=_when):
                if best is not None and _when(record) >= _when(best):
                    break
                if where(_readable(record)):
                    best = _readable(record)
                    break
        return best

    def top(self, field: str, kind: Kind | str, k: int = 10) -> list[dict[str, Any]]:
        """The k layers in which `field` was largest, each with its largest row. NaN does not compete."""
        kind = _kind(kind)
        selection = self.selection(_TABLE_OF_KIND.get(kind, "stats"))
        selection.gather([], [field])  # an unknown field is an error also where nothing was recorded
        best: dict[int, tuple[float, Hit, int]] = {}
        for hit in selection.hits(kind=_code(kind)):
            sites, values = selection.values(hit, "site"), selection.values(hit, field).astype(np.float64)
            order = np.lexsort((values, sites))
            order = order[~np.isnan(values[order])]
            last_of_site = np.r_[np.diff(sites[order]) != 0, np.ones(min(1, len(order)), bool)]
            for position in order[last_of_site].tolist():
                site, value = int(sites[position]), float(values[position])
                if site not in best or value > best[site][0]:
                    best[site] = (value, hit, position)
        ranked = sorted(best.values(), key=lambda item: -item[0])[:k]
        return [self._record(selection, hit, position, field) for _, hit, position in ranked]

    def heatmap(self, field: str, kind: Kind | str, width: int = 1000, between: Span | None = None) -> Heatmap:
        """`field` of every layer over the steps, the largest value of each cell; NaN apart from it."""
        kind = _kind(kind)
        selection = self.selection(_TABLE_OF_KIND.get(kind, "stats"), between)
        return pooled(selection, list(selection.hits(kind=_code(kind))), field, width)

    def follow(
        self, *, from_start: bool = False, interval_s: float = 0.1, until: Callable[[], bool] | None = None
    ) -> Iterator[News]:
        """Yields what is new, ten times a second at most, until the run has ended or `until` says so."""
        seen: dict[tuple[int, str], int] = {}
        facts = 0
        if not from_start:
            seen, facts = self._ranks.ends(), len(self._ranks.facts)
        while True:
            over = self.ended or (until is not None and until())
            self.refresh()  # after the question: what came before the end is not missed
            selections = {name: self.selection(name) for name in TABLES}
            tables = {name: self._rows(each, list(each.after(seen))) for name, each in selections.items()}
            news = News({name: rows for name, rows in tables.items() if len(rows)}, self._ranks.facts[facts:])
            seen, facts = self._ranks.ends(), len(self._ranks.facts)
            if news.tables or news.facts:
                yield news
            elif over:
                return
            else:
                time.sleep(interval_s)

    def release(self) -> None:
        """Gives back the memory that looking at mapped files has taken."""
        self.rollups.release()

    def narrowed(self, between: Span | None) -> Span:
        """The steps that are both in the window of this view and in `between`."""
        return narrowed(self._window, between)

    def selection(self, table: str, between: Span | None = None) -> Selection:
        """The rows of a table in the window of this view and in `between`."""
        return Selection(self._ranks, table, narrowed(self._window, between))

    def _end_ns(self) -> int | None:
        """When the first step after the window began to be recorded; None where there is none, or nobody knows."""
        last = self._window[1]
        if last is None:
            return None
        for further in (last + _NEARBY, None):
            rows = Selection(self._ranks, "scalars", (last + 1, further))
            found = rows.gather(list(rows.hits()), ["wall_ns"])["wall_ns"]
            if len(found):
                return int(found.min()) or None
        return None

    def _rows(self, selection: Selection, hits: Sequence[Hit], columns: Sequence[str] | None = None) -> Rows:
        return Rows(selection.gather(hits, columns), name_of=self._ranks.name)

    def _of_kind(
        self,
        kind: Kind,
        between: Span | None,
        *,
        sites: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Rows:
        selection = self.selection(_TABLE_OF_KIND.get(kind, "stats"), between)
        return self._rows(selection, list(selection.hits(sites=sites, kind=_code(kind))), columns)

    def _record(self, selection: Selection, hit: Hit, position: int, field: str) -> dict[str, Any]:
        row = np.arange(hit.chunk.rows)[hit.rows][position : position + 1]
        names = [*(TABLES[selection.table].names or ()), "rank", field]
        rows = self._rows(selection, [Hit(hit.rank, hit.chunk, row)], names)
        return _readable(next(rows.records()))

    def _own_parameters(self, layer: Site) -> list[Site]:
        """The parameters a module owns itself, not those of the modules in it."""
        path = "" if layer.kind is SiteKind.MODEL else layer.path
        model = layer.id if layer.kind is SiteKind.MODEL else layer.model
        return [
            site
            for site in self._ranks.sites.values()
            if site.kind is SiteKind.PARAMETER and site.model == model and site.path.rpartition(".")[0] == path
        ]


def _kind(kind: Kind | str) -> Kind:
    try:
        return Kind(kind)
    except ValueError:
        raise UnknownName("kind", str(kind), [k.value for k in Kind], listed_by="neuraldbg.records.Kind") from None


def _code(kind: Kind) -> int | None:
    """The code of a kind of statistics; the other tables hold one kind each and have no such column."""
    return None if kind in _TABLE_OF_KIND else KIND_CODE[kind]


def _when(record: Mapping[str, Any]) -> tuple[int, int]:
    return record["step"], record["seq"]


_WORD: Final = {
    "kind": {code: kind.value for kind, code in KIND_CODE.items()},
    "phase": {code: phase.value for phase, code in PHASE_CODE.items()},
    "call": {code: call.value for call, code in CALL_CODE.items()},
}


def _readable(record: dict[str, Any]) -> dict[str, Any]:
    """A record with words instead of codes."""
    return {name: _WORD[name].get(value, value) if name in _WORD else value for name, value in record.items()}
