"""Memory that grows with the steps: whether it does, by how much, with which confidence, and who keeps it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import SiteKind

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

WINDOWS: Final = 12  # apart from each other: growth is counted once
LEAST_WINDOWS: Final = 6
SETTLED: Final = 10  # steps until caches, allocators and optimizer state have what they need
LEAST_BYTES: Final = 4 * 2**20
LEAST_SHARE: Final = 0.02  # of what was there
SURE, STILL = 0.99, 0.9  # of the whole curve, of its second half
SERIES: Final = (
    *(("device_allocated_bytes", "device"), ("device_bytes", "device")),
    *(("host_allocated_bytes", "host"), ("rss_bytes", "host")),
)
EXPLAINS: Final = 0.1  # share of the growth that a holder must have: it was weighed at half of the steps or later
MB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Trend:
    """Growth of a curve over non-overlapping windows."""

    growth: float  # from the first window to the last
    per_step: float
    confidence: float  # that it rises at all, by the order of the windows (Mann-Kendall, one-sided)
    steps: int
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Leak:
    where: str  # host, device, or - for what was counted and not weighed
    growth_bytes: float | None
    bytes_per_step: float | None
    confidence: float
    steps: int
    holder: str | None = None  # the variable that keeps it
    kind: str | None = None  # list, dict, ...
    keeps: int | None = None  # graphs, tensors or arrays in it
    what: str | None = None  # graphs, tensors, arrays, objects
    source: str | None = None
    summary: str = ""

    def told(self) -> dict[str, Any]:
        return asdict(self)


def trend(steps: Sequence[int], values: Sequence[float]) -> Trend | None:
    """None where there are too few points. Windows are stretches of as many steps, however often memory was looked
    at; each is told by its lowest point: what comes and goes within one (a batch, a cache that is emptied) does not
    count."""
    at, level = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    good = np.isfinite(level)
    at, level = at[good], level[good]
    windows = min(WINDOWS, len(level) // 2)
    if windows < LEAST_WINDOWS:
        return None
    edges = np.linspace(at[0], at[-1], windows + 1)[1:-1]
    inside = np.searchsorted(edges, at, side="right")
    parts = [part for window in range(windows) if len(part := np.flatnonzero(inside == window))]
    windows = len(parts)
    if windows < LEAST_WINDOWS:
        return None
    lows = np.array([level[part].min() for part in parts])
    middles = np.array([at[part].mean() for part in parts])
    pairs = [(i, j) for i in range(windows) for j in range(i + 1, windows)]
    slopes = np.array([(lows[j] - lows[i]) / max(middles[j] - middles[i], 1e-9) for i, j in pairs])
    return Trend(
        growth=float(lows[-1] - lows[0]),
        per_step=float(np.median(slopes)),
        confidence=_rising(lows),
        steps=int(at[-1] - at[0]),
        first=float(lows[0]),
        last=float(lows[-1]),
    )


def _rising(lows: NDArray[np.float64]) -> float:
    """1 less the chance that levels in no particular order rise as consistently as these."""
    n = len(lows)
    signs = np.sign(lows[None, :] - lows[:, None])
    score = float(signs[np.triu_indices(n, 1)].sum())
    _, ties = np.unique(lows, return_counts=True)
    spread = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if spread <= 0 or score <= 0:
        return 0.0
    z = (score - 1) / math.sqrt(spread)
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def is_leak(found: Trend | None) -> bool:
    """Rises nearly surely, by megabytes, and still does at the end."""
    if found is None or found.confidence < SURE or found.per_step <= 0:
        return False
    return found.growth >= max(LEAST_BYTES, LEAST_SHARE * found.first)


def leak_in(steps: Sequence[int], values: Sequence[float]) -> Trend | None:
    """The growth of a curve that leaks; None for one that does not. A pool that fills up and stays is no leak: the
    second half must rise as well."""
    found = trend(steps, values)
    if found is None or not is_leak(found):
        return None
    half = int(np.searchsorted(np.asarray(steps), (steps[0] + steps[-1]) / 2))
    later = trend(steps[half:], values[half:])
    still = later is None or (later.confidence > STILL and later.per_step > found.per_step / 4)
    return found if still else None


def leaks(trace: Trace) -> list[Leak]:
    """What grows and who keeps it; a growth whose keeper was not found is told without one, a keeper of graphs also
    where their bytes do not show yet."""
    kept = _keepers(trace)
    told = [_leak(where, found, kept) for where, found in _grown(trace)[:1]]
    graphs = kept if not told else []
    return told + [_counted(one) for one in graphs if one["what"] == "graphs"]


def _grown(trace: Trace) -> list[tuple[str, Trend]]:
    """By the most exact measure of each place: what is allocated before what the process holds."""
    found, seen = [], set()
    for name, where in SERIES:
        steps, values = curve_of(trace, name)
        if where not in seen and len(steps) >= 2 * LEAST_WINDOWS:
            seen.add(where)
            grown = leak_in(steps.tolist(), values.tolist())
            if grown is not None:
                found.append((where, grown))
    return found


def curve_of(trace: Trace, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    site = next((one.id for one in trace.sites if one.kind is SiteKind.SERIES and one.path == name), None)
    if site is None:
        return np.empty(0, np.int64), np.empty(0)
    table = trace.table("scalars", ("step", "site", "value"))
    mine = (table["site"] == site) & (table["step"] >= SETTLED)
    return table["step"][mine], table["value"][mine]


def _keepers(trace: Trace) -> list[dict[str, Any]]:
    """Variables of the script that keep more and more, the one with most bytes or graphs first."""
    found: list[dict[str, Any]] = []
    for fact in trace.told("values_kept")[-1:]:
        found += [one for one in fact["holders"] if one["grew_by"] > 0]
    held = [fact for fact in trace.told("graphs_kept") if fact.get("holder")]
    for fact in held[-1:]:
        count = max(each["count"] for each in trace.told("graphs_kept"))
        holder = fact["holder"]
        if fact["count"] >= max(8, 0.2 * fact["followed"]):
            found.insert(0, {**holder, "keeps": count, "what": "graphs", "source": holder.get("source")})
    return found


def _leak(where: str, found: Trend, kept: list[dict[str, Any]]) -> Leak:
    by = next((one for one in kept if one["what"] == "graphs" or one["grew_by"] >= EXPLAINS * found.growth), {})
    rate = f"{found.per_step / 1024:.1f} KB a step"
    grew = f"memory on the {where} grows by {rate}: {found.growth / MB:.1f} MB in {found.steps} steps"
    return Leak(
        where,
        found.growth,
        found.per_step,
        found.confidence,
        found.steps,
        by.get("name"),
        by.get("kind"),
        by.get("keeps"),
        by.get("what"),
        by.get("source"),
        f"{_sentence(by)}; {grew}" if by else f"{grew}; which variable keeps it was not found",
    )


def _counted(by: dict[str, Any]) -> Leak:
    return Leak(
        "-", None, None, SURE, 0, by["name"], by.get("kind"), by["keeps"], "graphs", by.get("source"), _sentence(by)
    )


def _sentence(by: dict[str, Any]) -> str:
    place = f" in {by['source']}" if by.get("source") else ""
    return f"{by.get('kind') or 'variable'} `{by['name']}`{place} keeps {by['keeps']:,} {by['what']}"
