"""The ranks of a run seen as one: common site ids, one step axis, one list of facts."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import Call, RunInfo, Site, SiteKind
from neuraldbg.trace.names import Names
from neuraldbg.trace.reader import Chunk, RankReader
from neuraldbg.trace.rundir import load_run_info, rank_directories
from neuraldbg.trace.tables import CALL_CODE, TABLES

# ids of other ranks that rank 0 does not have are moved here, so that they never meet
STRIDE: Final = 1_000_000
_UPDATES: Final = (CALL_CODE[Call.STEP], CALL_CODE[Call.STEP_MANUAL])
_SITE_FIELDS: Final = frozenset(field.name for field in fields(Site))
_SITE_REFERENCES: Final = ("site", "model")
SiteKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TracedRun(RunInfo):
    """RunInfo with what the trace itself tells."""

    steps_kind: str = "update"  # what `step` counts; "backward" where nothing ever updates
    steps: int | None = None  # updates (or backwards) done, as the end of the run reported them


class RankView:
    """One rank in the run: its chunks, and what its ids and steps mean in the whole."""

    def __init__(self, reader: RankReader) -> None:
        self.reader = reader
        self.global_of: dict[int, int] = {}  # site ids of this rank -> of the run
        self.taken: set[int] = set()  # those of the run that are among them
        self.facts_seen = 0
        self.updates = 0
        self.backward_seqs: NDArray[np.int64] = np.empty(0, np.int64)
        self._calls_seen = 0
        self._first_call = -1
        self._lookup: NDArray[np.int32] | None = None
        self._same_ids = reader.rank == 0  # this rank numbers sites as the run does

    def count_calls(self) -> None:
        """Takes in the calls recorded since the last time."""
        chunks = self.reader.chunks["calls"]
        first = chunks[0].first_row if chunks else -1
        if first != self._first_call:  # the first time, or evicted: then facts say how many there were
            self._first_call, self._calls_seen, self.updates = first, 0, 0
            self.backward_seqs = self.backward_seqs[:0]
        found = [self.backward_seqs]
        for chunk in chunks:
            skip = max(0, self._calls_seen - chunk.first_row)
            if skip < chunk.rows:
                codes = chunk.column("call")[skip:]
                self.updates += int(np.isin(codes, _UPDATES).sum())
                found.append(chunk.column("seq")[skip:][codes == CALL_CODE[Call.BACKWARD]])
        if chunks:
            self._calls_seen = chunks[-1].end_row
        if len(found) > 1:
            self.backward_seqs = np.sort(np.concatenate(found))

    def learn(self, local: int, known: int) -> None:
        self.global_of[local] = known
        self.taken.add(known)
        self._lookup = None
        self._same_ids &= local == known

    def local_of(self, known: int) -> int | None:
        """The id this rank has for a site of the run; None where it never saw it."""
        for local, other in self.global_of.items():
            if other == known:
                return local
        if known < 0:
            return known
        local = known - STRIDE * self.reader.rank
        return local if local >= 0 and local not in self.global_of else None

    def to_global(self, sites: NDArray[np.int32]) -> NDArray[np.int32]:
        """A column of site ids, as the run numbers them. Unknown ids are moved out of the way of others."""
        if self._same_ids:
            return sites
        top = max([*self.global_of, int(sites.max(initial=0))]) + 1
        if self._lookup is None or len(self._lookup) < top:
            self._lookup = np.arange(top, dtype=np.int32) + np.int32(STRIDE * self.reader.rank)
            for local, known in self.global_of.items():
                self._lookup[local] = known
        return np.where(sites < 0, sites, self._lookup[np.maximum(sites, 0)]).astype(np.int32)


class MergedRanks:
    """All ranks of a run directory; ranks that appear later are taken in by `refresh`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.views: dict[int, RankView] = {}
        self.sites: dict[int, Site] = {}
        self.facts: list[dict[str, Any]] = []
        self.facts_of: dict[Any, list[dict[str, Any]]] = {}  # by type
        self.names = Names([])
        self._renamed = False  # sites are new since they were named
        self.steps_kind = "update"
        self._known: dict[SiteKey, int] = {}
        self._evicted_backwards: dict[int, int] = {}
        self._info, self._info_problem = load_run_info(path)

    def refresh(self) -> bool:
        if self._info_problem is not None:
            self._info, self._info_problem = load_run_info(self.path)
        try:
            directories = rank_directories(self.path)
        except OSError:
            return False
        changed = False
        for rank in sorted(directories):
            view = self.views.get(rank)
            if view is None:
                view = self.views[rank] = RankView(RankReader(rank, directories[rank]))
            if view.reader.refresh():
                changed = True
                self._take_facts(view)
                view.count_calls()
        self.views = dict(sorted(self.views.items()))
        if self._renamed:  # once for all ranks
            self.names, self._renamed = Names(self.sites.values()), False
        if changed:
            self._choose_step_axis()
        return changed

    def forget(self) -> None:
        self.views.clear()

    @property
    def run(self) -> TracedRun:
        stored = {field.name: getattr(self._info, field.name) for field in fields(RunInfo)}
        sizes = [fact.get("world_size") or 1 for fact in self.facts_of.get("process", ())]
        stored["world_size"] = max([stored["world_size"], *sizes])
        run = TracedRun(**stored, steps_kind=self.steps_kind)
        main = min(self.views, default=0)
        for fact in self.facts_of.get("run", ()):
            if fact["rank"] == main:
                run = replace(
                    run, backend=fact.get("backend"), versions={**run.versions, **(fact.get("versions") or {})}
                )
        for fact in self.facts_of.get("end", ()):
            if fact["rank"] == main:
                told: dict[str, Any] = {key: fact.get(key) for key in ("exit_code", "error", "duration_s", "steps")}
                run = replace(run, ended=True, **told)
        return run

    def _choose_step_axis(self) -> None:
        evicted = {fact["rank"]: fact.get("rows") or {} for fact in self.facts_of.get("evicted", ())}
        self._evicted_backwards = {rank: int(rows.get("backwards", 0)) for rank, rows in evicted.items()}
        updates = sum(view.updates for view in self.views.values())
        updates += sum(int(rows.get("updates", 0)) for rows in evicted.values())
        backwards = sum(len(view.backward_seqs) for view in self.views.values())
        backwards += sum(self._evicted_backwards.values())
        self.steps_kind = "backward" if backwards and not updates else "update"

    @property
    def damage(self) -> str | None:
        found = [str(damage) for view in self.views.values() for damage in view.reader.damage]
        if self._info_problem is not None:
            found.append(self._info_problem)
        for rank, view in self.views.items():
            for table in TABLES:
                missing = view.reader.missing(table)
                if missing:
                    found.append(f"rank {rank}: {missing} rows of {table} are lost")
        return "; ".join(found) or None

    def counted(self, type: str, rank: int | None = None) -> dict[str, int]:
        """The largest counters each rank, or one alone, reported in facts of this type or under this name at its end,
        summed."""
        largest: dict[tuple[int, str], int] = {}
        for fact in self.facts if rank is None else (one for one in self.facts if one["rank"] == rank):
            rows = (
                fact.get("rows") if fact.get("type") == type else fact.get(type) if fact.get("type") == "end" else None
            )
            for name, count in (rows or {}).items():
                key = (fact["rank"], name)
                largest[key] = max(largest.get(key, 0), int(count))
        total: dict[str, int] = dict.fromkeys((*TABLES, "facts"), 0)
        for (_, name), count in largest.items():
            total[name] = total.get(name, 0) + count
        return total

    def ends(self) -> dict[tuple[int, str], int]:
        """How far every table of every rank reaches."""
        return {
            (rank, table): chunks[-1].end_row
            for rank, view in self.views.items()
            for table, chunks in view.reader.chunks.items()
            if chunks
        }

    def step_column(self, rank: int, chunk: Chunk) -> NDArray[np.int64]:
        """Steps of a chunk: updates done before a row; in a run without any, backwards begun before it."""
        if self.steps_kind == "update":
            return chunk.column("step")
        found = np.searchsorted(self.views[rank].backward_seqs, chunk.column("seq"), side="left")
        return found.astype(np.int64) + self._evicted_backwards.get(rank, 0)

    def first_step(self, rank: int, chunk: Chunk) -> int:
        return chunk.step_min if self.steps_kind == "update" else int(self.step_column(rank, chunk).min())

    def last_step(self, rank: int, chunk: Chunk) -> int:
        return chunk.step_max if self.steps_kind == "update" else int(self.step_column(rank, chunk).max())

    def site(self, number: int) -> Site:
        """The site of an id; one whose fact was lost still has its number."""
        return self.sites.get(number) or Site(number, f"site {number}", SiteKind.MODULE)

    def name(self, number: int) -> str:
        return self.names.canonical(number) if number in self.sites else f"site {number}"

    def _take_facts(self, view: RankView) -> None:
        rank = view.reader.rank
        for raw in view.reader.facts[view.facts_seen :]:
            fact = {**raw, "rank": rank}
            if fact.get("type") == "site":
                self._renamed |= self._take_site(view, fact)
            fact = self._in_run_ids(view, fact)
            self.facts.append(fact)
            self.facts_of.setdefault(fact.get("type"), []).append(fact)
        view.facts_seen = len(view.reader.facts)

    def _take_site(self, view: RankView, fact: dict[str, Any]) -> bool:
        site = _site_of(fact)
        if site is None:
            return False
        if site.model is not None:
            site = replace(site, model=view.global_of.get(site.model, site.model))
        known = view.global_of.get(site.id)
        if known is None:
            known = self._number(view, site)
            view.learn(site.id, known)
        site = replace(site, id=known)
        before = self.sites.get(known)
        if before is not None and (before.kind, before.path) == (site.kind, site.path):
            kept = {name: getattr(before, name) for name in _SITE_FIELDS if getattr(site, name) is None}
            site = replace(site, **kept, rank=min(before.rank, site.rank))
        self.sites[known] = site
        return site != before

    def _number(self, view: RankView, site: Site) -> int:
        """The id of a site in the run: that of its like in an earlier rank, else its own, out of the others' way."""
        alike = 0
        while True:
            key = (site.kind, site.model if site.kind is not SiteKind.MODEL else None, site.path, alike)
            known = self._known.get(key)
            if known is None:
                fresh = site.id + STRIDE * view.reader.rank
                self._known[key] = fresh
                return fresh
            if known not in view.taken:
                return known
            alike += 1

    def _in_run_ids(self, view: RankView, fact: dict[str, Any]) -> dict[str, Any]:
        rank = view.reader.rank
        if rank == 0 and fact.get("type") != "site":
            return fact
        for name in _SITE_REFERENCES:
            if isinstance(fact.get(name), int):
                fact[name] = view.global_of.get(fact[name], fact[name])
        if isinstance(fact.get("parameter_sites"), list):
            fact["parameter_sites"] = [view.global_of.get(site, site) for site in fact["parameter_sites"]]
        if fact.get("type") == "site":
            fact["id"] = view.global_of.get(fact.get("id", -1), fact.get("id"))
        elif fact.get("type") == "source" and isinstance(fact.get("id"), int):
            fact["id"] += STRIDE * rank
        return fact


def _site_of(fact: dict[str, Any]) -> Site | None:
    """The Site a fact tells of; None where it makes no sense to this version."""
    given = {key: value for key, value in fact.items() if key in _SITE_FIELDS}
    try:
        given["kind"] = SiteKind(given["kind"])
        for name in ("shape", "input_shape"):
            if given.get(name) is not None:
                given[name] = tuple(given[name])
        return Site(**given)
    except (KeyError, TypeError, ValueError):
        return None
