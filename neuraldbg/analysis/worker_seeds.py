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
        return _finding(evidence, *alike, rank_of, across=False)
    told = [fact for fact in told if fact["rank"] in rank_of]
    alike = _alike(told, lambda fact: (fact["site"], fact["begun"]), lambda fact: fact["rank"])
    return _finding(evidence, *alike, rank_of, across=True) if alike else None


def _alike(told: Group, together: Any, apart: Any) -> tuple[str, Group] | None:
    """Of those that belong together, the largest group of different ones that drew from the same generator."""
    groups: dict[tuple[Any, ...], dict[Any, dict[str, Any]]] = defaultdict(dict)
    for fact in told:
        for name in fact["drawn"]:
            key = (*together(fact), name, (fact.get("generators") or {}).get(name))
            groups[key].setdefault(apart(fact), fact)
    found = [(str(key[-2]), list(group.values())) for key, group in groups.items() if len(group) > 1 and key[-1]]
    return max(found, key=lambda one: len(one[1]), default=None)


def _finding(evidence: Evidence, generator: str, group: Group, rank_of: dict[int, int], *, across: bool) -> Finding:
    """`across`: on several ranks; else several workers of one."""
    loader = evidence.trace.site_of(group[0]["site"])
    alike = sorted(rank_of[fact["rank"]] if across else fact["worker"] for fact in group)
    names, draw = ", ".join(map(str, alike[:4])), f"draw the same random numbers ({generator})"
    how = "every rank augments its own samples in the same way" if across else "they augment their samples alike"
    return Finding(
        "duplicate_data",
        Severity.INFO if across else Severity.WARNING,
        f"workers of {loader.path} {draw} on ranks {names}" if across else f"workers {names} of {loader.path} {draw}",
        step=0,
        source=loader.source,
        evidence={"ranks_alike" if across else "workers_alike": len(alike), "generator": generator},
        rank=alike[1] if across else rank_of.get(group[0]["rank"], 0),
        confidence=0.9 if across else 0.95,
        inference=f"{how}, batch after batch; {CURE}",
    )
