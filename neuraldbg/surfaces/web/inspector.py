"""One layer and one run in numbers, as the inspector and the header of the page show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neuraldbg.analysis.inspection import parameters_of
from neuraldbg.analysis.ranks import processes
from neuraldbg.records import Kind, Phase, Site, SiteKind
from neuraldbg.surfaces.web import data
from neuraldbg.surfaces.web.data import series_names
from neuraldbg.trace import Rows, Trace
from neuraldbg.trace.rollup import METRICS
from neuraldbg.trace.tables import PHASE_CODE

MB = 1e6
LOOK_BACK = 1000  # steps that usually hold the last hundred executions
_CHECKPOINTS = {"checkpoint_saved": "saved", "checkpoint_read": "read", "state_loaded": "loaded"}
_GROUPS = {
    "execution_times": "execution_time",
    "memory_usage": "memory",
    "activations": "mean_activation",
    "gradients": "grad_norm",
}


def inspect_layer(trace: Trace, name: str, *, step: int | None, history: int) -> dict[str, Any]:
    """Every number of a layer's last executions up to `step`, and what they are like over all of those."""
    site = trace.site(name)
    executions = _executions(trace, site, step, history)
    return {
        "layer": trace.canonical(site),
        "type": site.op,
        "parameters": site.parameters,
        "source": site.source or site.defined,
        "aliases": trace.aliases(site),
        "step": executions[-1]["step"] if executions else None,
        "latest": executions[-1] if executions else {},
        "statistics": {group: _spread(executions, key) for group, key in _GROUPS.items()},
        "profile": _profile(executions),
        "history": executions,
    }


def _executions(trace: Trace, site: Site, step: int | None, history: int) -> list[dict[str, Any]]:
    last = (trace.last_step if step is None else step) or 0
    for back in (2 * history, LOOK_BACK, last):  # where every step is measured, the first look is enough
        found = executions_between(trace, site, (max(0, last - back), last))
        if len(found) >= history or back >= last:
            break
    return found[-history:]


def executions_between(
    trace: Trace, site: Site, between: tuple[int | None, int | None], *, nan: bool = False
) -> list[dict[str, Any]]:
    """One entry a step, of everything that was measured in it; the last execution of a step counts. With `nan` a value
    that is not a number stays one, as a breakpoint sees it."""
    by_step: dict[int, dict[str, Any]] = {}

    def put(rows: Rows, values: Mapping[str, Any]) -> None:
        columns = {key: value.tolist() for key, value in values.items()}
        for at, when in enumerate(rows.steps.tolist()):
            entry = by_step.setdefault(when, {"step": when})
            entry.update({key: column[at] if nan else _known(column[at]) for key, column in columns.items()})

    spans = trace.history(site, Kind.SPAN, between=between)
    for phase, key in ((Phase.FORWARD, "execution_time"), (Phase.BACKWARD, "backward_time")):
        mine = _where(spans, spans.phase == PHASE_CODE[phase])
        memory = np.where(mine.host_bytes >= 0, mine.host_bytes / MB, np.nan)
        put(mine, {key: mine.duration_ns * 1e-9, **({"memory": memory} if phase is Phase.FORWARD else {})})
    output = trace.history(site, Kind.ACTIVATION, between=between)
    put(output, {**_named(output, "{}_activation"), "norm_activation": output.l2, "dead_ratio": _zeros(output)})
    put(output, {"nan_count": output.nan_count, "inf_count": output.inf_count})
    gradient = trace.history(site, Kind.GRADIENT, between=between)
    put(gradient, {"grad_norm": gradient.l2, **_named(gradient, "grad_{}")})
    put(gradient, {"grad_nan_count": gradient.nan_count, "grad_inf_count": gradient.inf_count})
    if not len(gradient):
        _put_parameter_norms(trace, site, between, by_step)
    for entry in by_step.values():
        entry["flops"] = site.flops
    return [by_step[when] for when in sorted(by_step)]


def _put_parameter_norms(trace: Trace, site: Site, between: Any, by_step: dict[int, dict[str, Any]]) -> None:
    """Where no gradient of its output was taken: the norm over those of its parameters."""
    squares: dict[int, float] = {}
    for parameter in parameters_of(trace, site) if site.kind is not SiteKind.MODEL else ():
        rows = trace.history(parameter, Kind.GRADIENT, between=between)
        for when, norm in dict(zip(rows.steps.tolist(), rows.l2.tolist(), strict=True)).items():
            squares[when] = squares.get(when, 0.0) + norm * norm
    for when, square in squares.items():
        by_step.setdefault(when, {"step": when})["grad_norm"] = _known(square**0.5)


def _where(rows: Rows, keep: Any) -> Rows:
    return Rows({name: column[keep] for name, column in rows.items()}, name_of=str)


def _named(rows: Rows, form: str) -> dict[str, Any]:
    return {form.format(name): rows[name] for name in ("mean", "std", "min", "max")}


def _zeros(rows: Rows) -> Any:
    return np.where(rows["count"] > 0, rows.zero_count / np.maximum(rows["count"], 1), np.nan)


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def _spread(executions: Sequence[Mapping[str, Any]], key: str) -> dict[str, float]:
    values = np.array([entry[key] for entry in executions if entry.get(key) is not None], np.float64)
    if not values.size:
        return {}
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            "mean": float(values.mean()),
            "std": float(values.std()),
            "min": float(values.min()),
            "max": float(values.max()),
            "median": float(np.median(values)),
        }


def _profile(executions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    times = [entry["execution_time"] for entry in executions if entry.get("execution_time") is not None]
    if not times:
        return {}
    return {
        "total_time": sum(times),
        "call_count": len(times),
        "min_time": min(times),
        "max_time": max(times),
        "avg_time": sum(times) / len(times),
    }


def newest_entries(trace: Trace) -> list[dict[str, Any]]:
    """What the newest whole step says of every layer, as the original's trace entries."""
    step = data.settled_step(trace)
    if step is None:
        return []
    sites = data.frame_layers(trace)
    found = data.frame(trace, sites, step)
    entries = []
    for at, site in enumerate(sites):
        values = {name: _known(float(column[at])) for name, column in found.items()}
        if any(value is not None for value in values.values()):
            entries.append({"layer": trace.canonical(site), "step": step, "flops": site.flops, **values})
    return entries


# -- the run -----------------------------------------------------------------------------------------------------------


def run_entry(trace: Trace, name: str) -> dict[str, Any]:
    run = trace.run
    return {
        "name": name,
        "id": run.id,
        "command": list(run.command),
        "script": run.script,
        "started": run.started,
        "duration_s": run.duration_s,
        "exit_code": run.exit_code,
        "error": run.error,
        "last_step": trace.last_step,
        "steps": run.steps,
    }


def run_details(trace: Trace) -> dict[str, Any]:
    run = trace.run
    modules = [site for site in trace.sites if site.kind in (SiteKind.MODEL, SiteKind.MODULE)]
    return {
        "backend": run.backend,
        "versions": dict(run.versions),
        "world_size": run.world_size,
        "ranks": list(processes(trace)) or trace.ranks,
        "steps_kind": run.steps_kind,
        "damage": trace.damage,
        "dropped": trace.dropped,
        "layers": [_layer(trace, site) for site in modules if site.kind is SiteKind.MODULE],
        "tree": _tree(trace, modules),
        "metrics": list(METRICS),
        "series": series_names(trace),
        "checkpoints": _checkpoints(trace),
        "hits": [{"step": one["at_step"], "layer": one["layer"]} for one in trace.facts("hit")],
    }


def _checkpoints(trace: Trace) -> list[dict[str, Any]]:
    """States that were saved or read back, one entry a step and kind."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for fact in trace.facts():
        what = _CHECKPOINTS.get(str(fact.get("type")))
        if what is not None:
            entry = {"step": fact.get("step", 0), "what": what, "file": fact.get("file"), "source": fact.get("line")}
            found.setdefault((entry["step"], what), entry)
    return [found[key] for key in sorted(found)]


def _layer(trace: Trace, site: Site) -> dict[str, Any]:
    shapes = {"input_shape": _listed(site.input_shape), "output_shape": _listed(site.shape)}
    told = {"name": trace.canonical(site), "type": site.op, "parameters": site.parameters, "source": site.source}
    return {**told, **shapes}


def _listed(shape: tuple[int, ...] | None) -> list[int] | None:
    return None if shape is None else list(shape)


def _tree(trace: Trace, modules: Sequence[Site]) -> list[dict[str, Any]]:
    """Models, and in each the modules by their paths; a path whose parent never ran hangs at the nearest that did."""
    roots: list[dict[str, Any]] = []
    nodes: dict[tuple[int | None, str], dict[str, Any]] = {}
    for site in sorted(modules, key=lambda each: (each.kind is not SiteKind.MODEL, each.path.count("."), each.id)):
        model = site.id if site.kind is SiteKind.MODEL else site.model
        path = "" if site.kind is SiteKind.MODEL else site.path
        if (model, path) in nodes:
            continue  # the root module of a model that is there already
        node = nodes[model, path] = {**_layer(trace, site), "path": path, "children": []}
        parent = _parent(nodes, model, path)
        (roots if parent is None else parent["children"]).append(node)
    return roots


def _parent(nodes: Mapping[tuple[int | None, str], dict[str, Any]], model: int | None, path: str) -> Any:
    while path:
        path = path.rpartition(".")[0]
        if (model, path) in nodes:
            return nodes[model, path]
    return None
