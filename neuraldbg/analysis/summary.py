"""A run in one object: what was trained, how far it came, and what every layer looked like at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neuraldbg.analysis.anomalies import AnomalyReport
from neuraldbg.analysis.diagnose import Judgement, diagnose, focus_of
from neuraldbg.analysis.evidence import Thresholds
from neuraldbg.analysis.findings import as_dict
from neuraldbg.analysis.layers import LayerSummary, summarise_layers
from neuraldbg.analysis.rank_overview import overview
from neuraldbg.analysis.ranks import main_rank, processes, run_of_main
from neuraldbg.analysis.replayable import replayable
from neuraldbg.analysis.series import SERIES_NAMES, Point, points, scalar_series
from neuraldbg.analysis.tried import in_the_light_of, read_tried
from neuraldbg.analysis.verdict import Facts, Verdict, judge
from neuraldbg.records import Call, RunInfo, Site, SiteKind
from neuraldbg.trace.tables import CALL_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace


@dataclass(frozen=True, slots=True)
class ModelSummary:
    name: str
    type: str | None
    parameters: int | None
    trainable: int | None
    in_optimizer: bool | None  # None: an optimizer holds parameters we could not name


@dataclass(frozen=True, slots=True)
class OptimizerSummary:
    name: str
    type: str | None
    lr: float | None
    updates: int


@dataclass(frozen=True, slots=True)
class Overhead:
    ratio: float | None  # added time over bare training time: 0.01 = 1 %; None = never measured
    sampled_steps: int | None
    total_steps: int | None
    dropped_rows: int
    ratio_after_start: float | None = None  # the same without the first updates, which are measured in full
    measured: tuple[float, float, float] | None = None  # full steps against quiet ones: ratio, interval of 95 %
    pairs: int | None = None  # full steps that it rests on


@dataclass(frozen=True, slots=True)
class LossLine:
    label: str  # "gan.py:31"
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Note:
    level: str  # "info" or "warning"
    text: str


@dataclass(frozen=True, slots=True)
class RunSummary:
    run: RunInfo
    ended: bool
    steps: int
    steps_kind: str  # "update", or "backward" where nothing ever steps
    models: tuple[ModelSummary, ...]
    optimizers: tuple[OptimizerSummary, ...]
    loss_kinds: tuple[str, ...]
    accumulation: int | None
    layers: tuple[LayerSummary, ...]
    series: Mapping[str, tuple[Point, ...]]
    overhead: Overhead
    notes: tuple[Note, ...]
    dropped: Mapping[str, int]
    damage: str | None
    findings: tuple[Mapping[str, Any], ...]
    verdict: Verdict
    loss_lines: tuple[LossLine, ...] = ()  # one per line that calls backward, where there are several
    measured_step: int | None = None  # the last step whose layers were measured
    judgement: Judgement | None = None
    anomalies: AnomalyReport | None = None  # None: not looked for
    focus: tuple[str, ...] = ()  # groups that were looked at; none is everything
    ranks: Mapping[str, Any] | None = None  # all of them at a glance; None: there is one process
    tried: Mapping[str, Any] | None = None  # the outcome of `neural whatif`; None: nothing was tried
    replayable: str | None = None  # how much of it `neural replay` can make again, in words; None: nothing to say


def summarise(
    trace: Trace,
    *,
    alive: bool | None = None,
    thresholds: Thresholds | None = None,
    anomalies: AnomalyReport | None = None,
    focus: Iterable[str] | None = None,
    ongoing: bool = False,
) -> RunSummary:
    """The whole run. `alive` says whether its process still runs, for a trace without an end; None = unknown.

    `anomalies` is taken over as it is; `focus` replaces the one that the run was started with; of an `ongoing` training
    nothing is concluded from what it has not done yet.
    """
    wanted = focus_of(trace.run) if focus is None else tuple(focus)
    calls, run, series, tried = _Calls(trace), run_of_main(trace), scalar_series(trace), read_tried(trace.path)
    layers, models, lines = summarise_layers(trace), _models(trace), _loss_lines(trace, series)
    facts = _facts(trace, run, calls, (series, lines), (layers, models), alive)
    judgement = in_the_light_of(diagnose(trace, thresholds, focus=wanted, ongoing=ongoing), tried)
    return RunSummary(
        run=run,
        ended=run.ended,
        steps=facts.updates or facts.backwards,
        steps_kind="backward" if facts.backwards and not facts.updates else "update",
        models=models,
        optimizers=_optimizers(trace, calls, series),
        loss_kinds=_loss_kinds(trace),
        accumulation=_last(trace, "accumulation", "backwards_per_update"),
        layers=layers,
        series={name: points(series, name) for name in SERIES_NAMES},
        overhead=_overhead(trace),
        notes=tuple(Note(fact.get("level", "info"), fact["text"]) for fact in trace.facts("note")),
        dropped=dict(trace.dropped),
        damage=trace.damage,
        findings=tuple(as_dict(one) for one in judgement.diagnoses),
        verdict=judge(replace(facts, focus=wanted), judgement),
        loss_lines=lines,
        measured_step=max((layer.stats_step for layer in layers if layer.stats_step is not None), default=None),
        judgement=judgement,
        anomalies=anomalies,
        focus=wanted,
        tried=tried,
        ranks=overview(trace) if processes(trace) else None,
        replayable=replayable(trace.path, facts.updates),
    )


class _Calls:
    """How often what was called, by process and site."""

    def __init__(self, trace: Trace) -> None:
        table = trace.table("calls", columns=("site", "call", "rank"))
        triples = np.stack([table["call"], table["site"], table["rank"]]).astype(np.int64)
        kinds, counts = np.unique(triples, axis=1, return_counts=True)
        self._counts = list(zip(*kinds.tolist(), counts.tolist(), strict=True))
        main = self._main_rank = main_rank(trace)
        self._evicted = trace.evicted if main is None or not processes(trace) else trace.evicted_of(main)

    def count(self, call: Call, site: int | None = None, *, rank: int | None = None) -> int:
        code = CALL_CODE[call]
        return sum(
            number
            for called, at, by, number in self._counts
            if called == code and site in (None, at) and rank in (None, by)
        )

    def updates(self) -> int:
        """Of the main process; of its children together where only they train."""
        kept = self.of_main(Call.STEP, Call.STEP_MANUAL)
        return kept + int(self._evicted.get("updates", 0))

    def backwards(self) -> int:
        return self.of_main(Call.BACKWARD) + int(self._evicted.get("backwards", 0))

    def of_main(self, *calls: Call, site: int | None = None) -> int:
        everybody = sum(self.count(call, site) for call in calls)
        if self._main_rank is None:
            return everybody
        return sum(self.count(call, site, rank=self._main_rank) for call in calls) or everybody


def _models(trace: Trace) -> tuple[ModelSummary, ...]:
    facts = {fact["site"]: fact for fact in trace.facts("model")}
    in_optimizer, unknown = _optimized_parameters(trace)
    found = []
    for site in trace.sites:
        if site.kind is SiteKind.MODEL:
            fact = facts.get(site.id, {})
            mine = {p.id for p in trace.sites if p.kind is SiteKind.PARAMETER and p.model == site.id}
            held: bool | None = bool(mine & in_optimizer)
            found.append(
                ModelSummary(
                    name=fact.get("name") or site.path,
                    type=fact.get("class") or site.op,
                    parameters=fact.get("parameters", site.parameters),
                    trainable=fact.get("trainable"),
                    in_optimizer=None if unknown and not held else held,
                )
            )
    return tuple(found)


def _optimized_parameters(trace: Trace) -> tuple[set[int], bool]:
    """Site ids of the parameters that optimizers hold, and whether they hold some that have no site."""
    held: set[int] = set()
    unknown = False
    for fact in trace.facts("optimizer"):
        held.update(fact.get("parameter_sites") or ())
        unknown = unknown or bool(fact.get("unknown_parameters"))
    return held, unknown


def _stray_models(trace: Trace, models: tuple[ModelSummary, ...], calls: _Calls) -> tuple[str, ...]:
    """Models that gradients came back to, with parameters to train, that no optimizer holds."""
    if not trace.facts("optimizer") or calls.count(Call.STEP_MANUAL):
        return ()
    sites = [site for site in trace.sites if site.kind is SiteKind.MODEL]
    return tuple(
        model.name
        for site, model in zip(sites, models, strict=True)
        if model.in_optimizer is False and model.trainable and calls.count(Call.PASS_TRAIN, site.id)
    )


def _optimizers(trace: Trace, calls: _Calls, series: Mapping[str, Any]) -> tuple[OptimizerSummary, ...]:
    latest: dict[int, dict[str, Any]] = {fact["site"]: fact for fact in trace.facts("optimizer")}
    sites: dict[int, Site] = {site.id: site for site in trace.sites}
    found = []
    for position, (site_id, fact) in enumerate(latest.items()):
        site = sites.get(site_id)
        name = fact.get("name") or (site.path if site else "optimizer")
        found.append(
            OptimizerSummary(
                name=name,
                type=fact.get("class") or (site.op if site else None),
                lr=_current_lr(series, fact, name, first=position == 0),
                updates=calls.of_main(Call.STEP, site=site_id),
            )
        )
    return tuple(found)


def _current_lr(series: Mapping[str, Any], fact: Mapping[str, Any], name: str, *, first: bool) -> float | None:
    for key in ("lr", f"lr.{name}") if first else (f"lr.{name}",):
        if key in series and len(series[key][1]):
            return float(series[key][1][-1])
    groups = fact.get("groups") or [{}]
    lr = groups[0].get("lr")
    return float(lr) if lr is not None else None


def _loss_kinds(trace: Trace) -> tuple[str, ...]:
    kinds = [kind for fact in trace.facts("loss") for kind in fact.get("kinds") or ()]
    return tuple(dict.fromkeys(kinds))


def _last(trace: Trace, type_: str, field: str) -> Any:
    facts = trace.facts(type_)
    return facts[-1].get(field) if facts else None


def _facts(
    trace: Trace, run: Any, calls: _Calls, curves: tuple[Any, Any], parts: tuple[Any, Any], alive: bool | None
) -> Facts:
    (series, lines), (layers, models) = curves, parts
    return Facts(
        mixed_losses=len(lines) > 1,
        run=run,
        ended=run.ended,
        alive=alive,
        updates=calls.updates(),
        backwards=calls.backwards(),
        passes=calls.count(Call.PASS),
        losses=series["loss"][1] if "loss" in series else None,
        loss_steps=series["loss"][0] if "loss" in series else None,
        models_seen=len(models),
        stray_models=_stray_models(trace, models, calls),
        layers=layers,
    )


def _loss_lines(trace: Trace, series: Mapping[str, Any]) -> tuple[LossLine, ...]:
    """Two networks have two losses: kept apart by the line of the script that calls backward."""
    sources = {fact["series"]: fact.get("source") for fact in trace.facts("loss") if fact.get("series")}
    named = [LossLine(sources.get(name) or name, points(series, name)) for name in sorted(sources) if name in series]
    return tuple(named) if len(named) > 1 else ()


def _overhead(trace: Trace) -> Overhead:
    measured = [fact for fact in trace.facts("overhead") if fact.get("ratio") is not None]
    last = measured[-1] if measured else {}
    compared = last.get("measured")
    return Overhead(
        ratio=last.get("ratio"),
        sampled_steps=last.get("sampled_steps"),
        total_steps=last.get("total_steps"),
        dropped_rows=sum(trace.dropped.values()),
        ratio_after_start=last.get("ratio_after_start"),
        measured=None if compared is None else (compared[0], compared[1], compared[2]),
        pairs=None if compared is None else int(compared[3]),
    )
