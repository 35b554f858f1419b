"""Workers of loaders that draw the same random numbers: within one process, or on several ranks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.ranks import processes
from neuraldbg.records import Finding, Severity

CURE = "seed them with the worker's number and the rank: worker_init_fn with torch.initial_seed(), a generator per rank"
Group = list[dict[str, Any]]


def same_worker_seeds(evidence: Evidence) -> Finding | None:
    """Two workers of one loader that begin with the same generator, and draw from it. Of ranks whose workers pairwise
    do: that is information, since many programs seed every rank alike and feed it other samples."""
    told = [fact for fact in evidence.trace.facts("worker") if fact.get("drawn")]
    alike = _alike(told, lambda fact: (fact["rank"], fact["site"], fact["begun"]), lambda fact: fact["worker"])
    rank_of = {one.folder: rank for rank, one in processes(evidence.trace).items()}
    if alike:
        return _within(evidence, *alike, rank_of)
    told = [fact for fact in told if fact["rank"] in rank_of]
    alike = _alike(told, lambda fact: (fact["site"], fact["begun"]), lambda fact: fact["rank"])
    return _across(evidence, *alike, rank_of) if alike else None


def _alike(told: Group, together: Any, apart: Any) -> tuple[str, Group] | None:
    """Of those that belong together, the largest group of different ones that drew from the same generator."""
    groups: dict[tuple[Any, ...], dict[Any, dict[str, Any]]] = defaultdict(dict)
    for fact in told:
        for name in fact["drawn"]:
            key = (*together(fact), name, (fact.get("generators") or {}).get(name))
            groups[key].setdefault(apart(fact), fact)
    found = [(str(key[-2]), list(group.values())) for key, group in groups.items() if len(group) > 1 and key[-1]]
    return max(found, key=lambda one: len(one[1]), default=None)


def _within(evidence: Evidence, generator: str, group: Group, rank_of: dict[int, int]) -> Finding:
    name, workers = evidence.trace.site_of(group[0]["site"]), sorted(fact["worker"] for fact in group)
    return Finding(
        "duplicate_data",
        Severity.WARNING,
        f"workers {', '.join(map(str, workers[:4]))} of {name.path} draw the same random numbers ({generator})",
        step=0,
        source=name.source,
        evidence={"workers_alike": len(workers), "generator": generator},
        rank=rank_of.get(group[0]["rank"], 0),
        confidence=0.95,
        inference=f"they augment their samples alike, batch after batch; {CURE}",
    )


def _across(evidence: Evidence, generator: str, group: Group, rank_of: dict[int, int]) -> Finding:
    name, ranks = evidence.trace.site_of(group[0]["site"]), sorted(rank_of[fact["rank"]] for fact in group)
    return Finding(
        "duplicate_data",
        Severity.INFO,
        f"workers of {name.path} draw the same random numbers ({generator}) on ranks {', '.join(map(str, ranks[:4]))}",
        step=0,
        source=name.source,
        evidence={"ranks_alike": len(ranks), "generator": generator},
        rank=ranks[1],
        confidence=0.9,
        inference=f"every rank augments its own samples in the same way; {CURE}",
    )
