"""The same layers on several backends, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .plain import BadMeasurement, mapping, number

TIMES: Final = ("mean_time", "std_time", "total_time")


class ComparativeProfiler:
    """A profile is `export_to_dict()` of a LayerProfiler, or anything with `layer_stats` or `summary.total_time`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets every backend."""
        self.backend_profiles: dict[str, dict[str, Any]] = {}
        self._results: dict[str, Any] = {}

    def add_backend_profile(self, backend_name: str, profile_data: Mapping[str, Any]) -> None:
        """What `LayerProfiler.export_to_dict` gives, or anything with `layer_stats` or `summary.total_time`."""
        if not isinstance(profile_data, Mapping) or not {"layer_stats", "summary"} & set(profile_data):
            raise BadMeasurement("a profile has layer_stats or summary, as LayerProfiler.export_to_dict() gives them")
        stats = mapping(profile_data.get("layer_stats") or {}, f"layer_stats of {backend_name!r}")
        for place, told in (*stats.items(), ("summary", profile_data.get("summary") or {})):
            known = mapping(told, f"{place!r} on {backend_name}")
            for name in TIMES:
                if known.get(name) is not None:
                    number(known[name], f"{name} of {place!r} on {backend_name}")
        self.backend_profiles[backend_name] = dict(profile_data)

    def run_backends(self, path: str, backends: Sequence[str], network: str | None = None) -> dict[str, Any]:
        """Run a .neural file with the same weights on each backend, take the times over, and compare them."""
        from neuraldbg.dsl.train.compare_backends import compare_backends

        for one in compare_backends(path, tuple(backends), network=network)[:1]:
            for result in one.results:
                self.add_backend_profile(result.backend, result.profile())
        return self.compare_backends(backends)

    def compare_backends(self, backends: Sequence[str] | None = None) -> dict[str, Any]:
        """With fewer than two profiles an `error`; a name nobody added is left out."""
        named = dict.fromkeys([backends] if isinstance(backends, str) else backends or self.backend_profiles)
        chosen = [name for name in named if name in self.backend_profiles]
        if len(chosen) < 2:
            return {
                "error": "two backends or more are needed: add_backend_profile(name, data) for each",
                "available_backends": list(self.backend_profiles),
            }
        layers = self._layers(chosen)
        self._results = {"backends": chosen, "layer_comparisons": layers, "summary": self._summary(chosen, layers)}
        return self._results

    def _layers(self, chosen: Sequence[str]) -> dict[str, Any]:
        stats = {name: self.backend_profiles[name].get("layer_stats") or {} for name in chosen}
        names = dict.fromkeys(layer for each in stats.values() for layer in each)
        found = {}
        for layer in names:
            data = {name: _numbers(stats[name][layer]) for name in chosen if layer in stats[name]}
            timed = {name: each["mean_time"] for name, each in data.items() if each["mean_time"] is not None}
            if len(timed) < 2:
                continue
            fast, slow = min(timed, key=lambda name: timed[name]), max(timed, key=lambda name: timed[name])
            found[layer] = {
                "layer": layer,
                "backend_data": data,
                "fastest_backend": fast,
                "slowest_backend": slow,
                "speedup": timed[slow] / timed[fast] if timed[fast] > 0 else None,
                "time_difference_ms": (timed[slow] - timed[fast]) * 1e3,
            }
        return found

    def _summary(self, chosen: Sequence[str], layers: Mapping[str, Any]) -> dict[str, Any]:
        totals = {name: total for name in chosen if (total := _total(self.backend_profiles[name])) is not None}
        wins = dict.fromkeys(chosen, 0)
        for each in layers.values():
            wins[each["fastest_backend"]] += 1
        if len(totals) < 2:
            unknown = dict.fromkeys(("fastest_backend", "slowest_backend", "overall_speedup"))
            text = "times of two backends or more are needed for a recommendation"
            return {**unknown, "total_times": totals, "layer_wins": wins, "recommendation": text}
        fast, slow = min(totals, key=lambda name: totals[name]), max(totals, key=lambda name: totals[name])
        speedup = totals[slow] / totals[fast] if totals[fast] > 0 else None
        return {
            "fastest_backend": fast,
            "slowest_backend": slow,
            "overall_speedup": speedup,
            "total_times": totals,
            "layer_wins": wins,
            "recommendation": _recommendation(fast, slow, speedup, wins[fast], len(layers)),
        }

    def get_backend_ranking(self) -> list[tuple[str, float]]:
        """Fastest first; a backend whose time is not known is not in it."""
        known = [(name, _total(data)) for name, data in self.backend_profiles.items()]
        return sorted(((name, total) for name, total in known if total is not None), key=lambda each: each[1])

    def export_comparison(self) -> dict[str, Any]:
        """Profiles, comparison and ranking as plain data."""
        return {
            "backend_profiles": self.backend_profiles,
            "comparison_results": self._results,
            "backend_ranking": self.get_backend_ranking(),
        }


def _numbers(stats: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: None if stats.get(name) is None else float(stats[name]) for name in TIMES}
    return {**times, "call_count": stats.get("call_count")}


def _total(profile: Mapping[str, Any]) -> float | None:
    total = (profile.get("summary") or {}).get("total_time")
    if total is None:
        times = [each.get("total_time") for each in (profile.get("layer_stats") or {}).values()]
        total = sum(map(float, times)) if times and all(time is not None for time in times) else None
    return None if total is None else float(total)


def _recommendation(fast: str, slow: str, speedup: float | None, wins: int, layers: int) -> str:
    if speedup is None or speedup < 1.05:
        return f"{fast} and {slow} are within 5 % of each other: choose by something else"
    won = f", ahead in {wins} of {layers} layers" if layers else ""
    return f"use {fast}: {speedup:.2f} times as fast as {slow}{won}"
