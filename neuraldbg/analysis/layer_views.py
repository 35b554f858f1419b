"""One layer from close up: every tensor measured of it at a step, and how each moved over the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.layers import KIND_OF, Columns, tensor_stats
from neuraldbg.errors import NotRecorded
from neuraldbg.records import Site, SiteKind, TensorStats
from neuraldbg.trace.tables import KIND_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace


@dataclass(frozen=True, slots=True)
class View:
    """One tensor of a layer: its statistics at a step and its norm over the run."""

    tensor: str  # "output", "input", "target", or the name of a parameter
    kind: str
    step: int
    stats: TensorStats
    first_bad_step: int | None
    steps: NDArray[np.int64]
    l2: NDArray[np.float64]  # nan where a tensor held a NaN, an infinity, or no finite value


@dataclass(frozen=True, slots=True)
class LayerViews:
    path: str
    aliases: tuple[str, ...]
    type: str | None
    params: int | None
    source: str | None
    first_step: int
    last_step: int
    views: tuple[View, ...]


def view_layer(trace: Trace, name: str, *, step: int | None = None, kind: str | None = None) -> LayerViews:
    """Statistics at the last recorded step up to `step`; NotRecorded says which steps there are."""
    site = trace.site(name)
    members = [(site, ""), *_members(trace, site)]
    stats = trace.table("stats")
    of_layer = np.isin(stats["site"], [member.id for member, _ in members])
    if kind is not None:
        of_layer &= stats["kind"] == next(code for each, code in KIND_CODE.items() if each.value == kind)
    rows = np.flatnonzero(of_layer)
    path = trace.canonical(site)
    if not len(rows):
        raise NotRecorded(f"nothing{f' of kind {kind!r}' if kind else ''} was recorded of {path} in this run")
    first, last = int(stats["step"][rows].min()), int(stats["step"][rows].max())
    if step is not None and step < first:
        raise NotRecorded(f"nothing was recorded of {path} up to step {step}; it has steps {first} to {last}")
    views = [
        view
        for member, label in members
        for view in _views(stats, rows[stats["site"][rows] == member.id], label, last if step is None else step)
    ]
    return LayerViews(
        path=path,
        aliases=tuple(trace.aliases(site)),
        type=site.op,
        params=site.parameters,
        source=site.source or site.defined,
        first_step=first,
        last_step=last,
        views=tuple(views),
    )


def _members(trace: Trace, site: Site) -> list[tuple[Site, str]]:
    """The root's twin site, and the parameters that the layer owns directly, with their own names."""
    if site.kind is SiteKind.PARAMETER:
        return []
    model = site.id if site.kind is SiteKind.MODEL else site.model
    path = "" if site.kind is SiteKind.MODEL else site.path
    found: list[tuple[Site, str]] = []
    for other in trace.sites:
        owner, _, own_name = other.path.rpartition(".")
        if other.id == site.id:
            continue
        if other.kind is SiteKind.PARAMETER and other.model == model and owner == path:
            found.append((other, own_name))
        elif not path and _is_root(other, model):
            found.append((other, ""))
    return found


def _is_root(site: Site, model: int | None) -> bool:
    return site.id == model or (site.kind is SiteKind.MODULE and site.model == model and not site.path)


def _views(stats: Columns, rows: NDArray[np.intp], label: str, upto: int) -> list[View]:
    views = []
    pairs = sorted({(int(stats["kind"][row]), int(stats["slot"][row])) for row in rows})
    for code, slot in pairs:
        mine = rows[(stats["kind"][rows] == code) & (stats["slot"][rows] == slot)]
        mine = mine[np.lexsort((stats["seq"][mine], stats["step"][mine]))]
        shown = mine[stats["step"][mine] <= upto]
        if not len(shown):
            continue
        bad = (stats["nan_count"][mine] > 0) | (stats["inf_count"][mine] > 0)
        kind = KIND_OF[code].value
        place = label or ("output" if kind in ("activation", "gradient") else kind)
        views.append(
            View(
                tensor=f"{place}[{slot}]" if slot else place,
                kind=kind,
                step=int(stats["step"][shown[-1]]),
                stats=tensor_stats(stats, int(shown[-1])),
                first_bad_step=int(stats["step"][mine[bad][0]]) if bad.any() else None,
                steps=stats["step"][mine].astype(np.int64),
                l2=np.where(bad, np.nan, stats["l2"][mine]).astype(np.float64),
            )
        )
    return views
