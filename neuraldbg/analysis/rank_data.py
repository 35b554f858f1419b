"""What ranks are fed: batches that several of them get alike."""

from __future__ import annotations

from collections import Counter

import numpy as np

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.rank_steps import by_folder
from neuraldbg.analysis.ranks import processes
from neuraldbg.records import Call, Finding, Severity
from neuraldbg.trace.tables import CALL_CODE

ENOUGH_BATCHES = 8
ALIKE = 0.9  # of the batches
DIFFERENT = 4  # batches that must differ among themselves: one batch for ever is another fault


def same_on_ranks(evidence: Evidence) -> Finding | None:
    """Ranks that train on the same batches, one by one. Where a model is cut into parts of one layer (a mesh with more
    than one axis), ranks get the same data on purpose."""
    trace = evidence.trace
    group = processes(trace)
    meshes = [one.get("mesh") or () for fact in trace.facts("shards") for one in fact.get("parameters") or ()]
    if len(group) < 2 or any(len(mesh) > 1 for mesh in meshes):
        return None
    table = trace.table("calls", ("step", "call", "pass_id", "digest", "rank"))
    rows, nothing = by_folder(table["rank"]), np.zeros(0, np.int64)
    fed = {rank: _inputs(table, rows.get(one.folder, nothing)) for rank, one in group.items()}
    first = _shared_most(fed)
    alike = {rank: _share_alike(fed[first], fed[rank]) for rank in group if rank != first}
    same = [rank for rank, share in alike.items() if share > ALIKE]
    if not same:
        return None
    count = min(len(fed[first]), len(fed[same[0]]))
    return Finding(
        "duplicate_data",
        Severity.WARNING,
        f"rank{'s' if len(same) > 1 else ''} {', '.join(map(str, same[:4]))} trained on the same batches as rank "
        f"{first}, one by one",
        step=min(fed[first]),
        source=evidence.line_of(Call.PASS),
        evidence={"batches_compared": count, "share_alike": alike[same[0]], "ranks_alike": len(same) + 1},
        rank=same[0],
        confidence=0.95,
        inference="every rank adds the same gradient: the batch is no larger and the epoch no shorter than on one; a "
        "DistributedSampler (with set_epoch), a shard of the data or a seed of its own for each rank cures it",
    )


def _shared_most(fed: dict[int, dict[int, int]]) -> int:
    """The first of the ranks that were given the same in the middle of the run: the others may have their own."""
    told = {rank: steps for rank, steps in fed.items() if steps}  # a rank may be missing
    common = sorted(set.intersection(*map(set, told.values()))) if told else []
    if not common:
        return next(iter(fed))
    middle = {rank: steps[common[len(common) // 2]] for rank, steps in told.items()}
    most, _ = Counter(middle.values()).most_common(1)[0]
    return next(rank for rank, digest in middle.items() if digest == most)


def _inputs(table: dict[str, np.ndarray], mine: np.ndarray) -> dict[int, int]:
    """Step -> hash of what was trained on in it."""
    call, passes, digest = (table[name][mine] for name in ("call", "pass_id", "digest"))
    trained = passes[call == CALL_CODE[Call.PASS_TRAIN]]
    chosen = (call == CALL_CODE[Call.PASS]) & (digest != 0) & np.isin(passes, trained)
    return dict(zip(table["step"][mine][chosen].tolist(), digest[chosen].tolist(), strict=True))


def _share_alike(one: dict[int, int], other: dict[int, int]) -> float:
    both = one.keys() & other.keys()
    if len(both) < ENOUGH_BATCHES or len({one[step] for step in both}) < DIFFERENT:
        return 0.0
    return sum(one[step] == other[step] for step in both) / len(both)
