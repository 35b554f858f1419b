"""Ranks that should train one model and do not: weights that differ, gradients that were never put together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.rank_digests import Difference, first_difference
from neuraldbg.analysis.rank_states import RanAhead, ran_ahead, states_of_ranks
from neuraldbg.analysis.ranks import Process, named, processes
from neuraldbg.records import Call, Finding, Severity, SiteKind
from neuraldbg.trace.tables import CALL_CODE

APART = 1e-3  # relative: gradient norms of one update that differ by more are not of the same gradients


def differences(evidence: Evidence) -> tuple[Difference | None, Difference | None]:
    """Of weights and of gradients."""
    return evidence.once(
        "rank differences",
        lambda: (
            first_difference(evidence.trace, Call.DIGEST_WEIGHT),
            first_difference(evidence.trace, Call.DIGEST_GRADIENT),
        ),
    )


def _of_gradients(weights: Difference, gradients: Difference | None) -> bool:
    """Whether the weights parted because the gradients did: those differ where the weights are still the same, or both
    were found to differ at one comparison after one at which both were not."""
    if gradients is None:
        return False
    return gradients.step < weights.step or (gradients.step == weights.step and weights.agreed is not None)


@cause(
    "weights_out_of_sync_across_ranks",
    group="sys",
    auto="S",
    explains=("rank_divergence", "no_learning", "slow_convergence"),
    excludes=("gradient_not_synchronised",),
)
def weights_out_of_sync_across_ranks(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that train one model hold different weights.

    Finds: a parameter whose values differ between ranks although every rank is given the same gradients, or whose
    values differed before the first update.
    Why it matters: the gradients that are averaged belong to different networks; the run looks alive and learns less
    than one rank alone would.
    Decides by: a hash of every parameter, taken by every rank before the same updates. Parameters that are sharded
    over ranks, and weights that come together again (local SGD, averaged models), do not count.
    Usual cures: wrap the model in DistributedDataParallel after it is built and loaded, on every rank, and call the
    wrapper; broadcast what one rank alone has loaded or changed; the same seed before the model is built.
    """
    weights, gradients = differences(evidence)
    if weights is None or _of_gradients(weights, gradients):
        return
    since = "before the first update" if weights.step == 0 else f"from update {_when(weights)} on"
    yield Finding(
        "weights_out_of_sync_across_ranks",
        _severity(evidence, weights),
        f"{_who(weights)} other weights than the others {since}: {_what(evidence, weights)}",
        step=weights.step,
        layer=evidence.layer_of(weights.site),
        source=_line_of_wrapper(evidence),
        evidence=_numbers(evidence, weights),
        rank=weights.ranks[0] if weights.ranks else 0,
        confidence=0.97,
        inference="each rank moves its own copy, and nothing brings them together again"
        if weights.lasting
        else "they came together again later: averaging from time to time does that",
    )


@cause(
    "gradient_not_synchronised",
    group="sys",
    auto="S",
    explains=("weights_out_of_sync_across_ranks", "rank_divergence", "no_learning"),
)
def gradient_not_synchronised(evidence: Evidence) -> Iterator[Finding]:
    """A rank updates its weights with gradients of its own.

    Finds: gradients that differ between ranks when the optimizer steps, in ranks that held the same weights, and
    weights that differ from then on; a rank that makes updates alone while others wait for its gradients.
    Why it matters: every rank trains a network of its own on its share of the data; only one of them is saved.
    Decides by: a hash of every gradient, taken by every rank before the same updates, the gradient norm and the number
    of updates. An optimizer that puts gradients together inside step() leaves equal weights and does not count.
    Usual cures: call the wrapper, not model.module; leave no_sync() before the last backward of an update; all_reduce
    by hand on every rank, for every parameter, before step().
    """
    alone = ran_ahead(states_of_ranks(evidence))
    if alone is not None:
        yield _alone(evidence, alone)
        return
    weights, gradients = differences(evidence)
    if gradients is None or weights is None or not _of_gradients(weights, gradients):
        return
    step = _first_apart(evidence, gradients)
    rank = gradients.ranks[0] if gradients.ranks else 0
    source, why = _why(evidence, rank)
    yield Finding(
        "gradient_not_synchronised",
        _severity(evidence, weights),
        f"{_who(gradients)} other gradients than the others from update {step} on: {_what(evidence, gradients)}",
        step=step,
        layer=evidence.layer_of(gradients.site),
        source=source,
        evidence=_numbers(evidence, gradients),
        rank=rank,
        confidence=0.97,
        inference=why,
    )


def _alone(evidence: Evidence, alone: RanAhead) -> Finding:
    rank = alone.ahead[0]
    source, why = _why(evidence, rank)
    states = states_of_ranks(evidence)
    updates, stood = states[rank].updates, [states[each].standing for each in alone.waited]
    seconds = {"seconds": max(float(fact["since_s"]) for fact in stood if fact is not None)} if any(stood) else {}
    return Finding(
        "gradient_not_synchronised",
        Severity.CRITICAL,
        f"{named(alone.ahead)} made {updates:,} updates with gradients of its own while {named(alone.waited)} waited "
        f"for them at update {alone.step}",
        step=alone.step,
        source=source,
        evidence={
            **seconds,
            "updates_it_made": updates,
            "updates_of_those_that_waited": alone.step,
            "ranks": ", ".join(map(str, alone.ahead[:16])),
            "ranks_that_waited": ", ".join(map(str, alone.waited[:16])),
        },
        rank=rank,
        confidence=0.95,
        inference=why,
    )


def _why(evidence: Evidence, rank: int) -> tuple[str | None, str]:
    """The line to look at, and what happened there."""
    folder = processes(evidence.trace)[rank].folder
    unused = _unused_wrapper(evidence, folder)
    if unused:
        return unused, f"the wrapper made at {unused} is never called: the model inside it is, so nothing is averaged"
    line = evidence.line_of(Call.BACKWARD)
    under = [fact for fact in evidence.trace.facts("unsynced") if fact["rank"] == folder]
    if under:
        told = under[0]["update"]
        return line, f"every backward of update {told} was made under no_sync(): nothing was averaged"
    return line, "the gradients of this update were not averaged over the ranks"


def _severity(evidence: Evidence, weights: Difference) -> Severity:
    """Loud where the ranks were meant to train one model and did not find back to each other."""
    return Severity.CRITICAL if weights.lasting and _meant_together(evidence) else Severity.INFO


def _meant_together(evidence: Evidence) -> bool:
    """A wrapper was made, the data is split over ranks, or something is sent in every update. Several trainings that
    only share a launcher show none of these."""
    trace = evidence.trace
    if trace.facts("wrapper") or any(fact.get("wrapper") for fact in trace.facts("model")):
        return True
    if any(fact.get("sampler") == "DistributedSampler" for fact in trace.facts("loader")):
        return True
    table = trace.table("calls", ("step", "call"))
    sent = table["step"][table["call"] == CALL_CODE[Call.COLLECTIVE]]
    return len(np.unique(sent)) > evidence.updates / 2


def _unused_wrapper(evidence: Evidence, folder: int) -> str | None:
    """The line that makes a wrapper which the model is never called through, in one rank."""
    made = [fact for fact in evidence.trace.facts("wrapper") if fact["rank"] == folder]
    used = any(fact.get("wrapper") for fact in evidence.trace.facts("model") if fact["rank"] == folder)
    return None if used or not made else made[-1].get("line")


def _line_of_wrapper(evidence: Evidence) -> str | None:
    made = evidence.facts("wrapper")
    return made[-1].get("line") if made else None


def _who(one: Difference) -> str:
    ranks = ", ".join(map(str, one.ranks[:4])) + (" ..." if len(one.ranks) > 4 else "")
    return f"rank {ranks} has" if len(one.ranks) == 1 else f"ranks {ranks} have"


def _what(evidence: Evidence, one: Difference) -> str:
    return f"{evidence.name(one.site)} and {one.sites - 1} more" if one.sites > 1 else str(evidence.name(one.site))


def _when(one: Difference) -> str:
    """Between which comparisons, where they are apart."""
    return f"{one.agreed} to {one.step}" if one.agreed is not None and one.step - one.agreed > 1 else str(one.step)


def _numbers(evidence: Evidence, one: Difference) -> dict[str, float | str]:
    return {
        "parameter": str(evidence.name(one.site)),
        "parameters_that_differ": one.sites,
        "parameters_compared": one.compared,
        "last_update_they_agreed": "none" if one.agreed is None else one.agreed,
        "first_update_they_differ": one.step,
        "ranks": ", ".join(map(str, one.ranks[:16])),
    }


def _first_apart(evidence: Evidence, gradients: Difference) -> int:
    """The update itself: norms are recorded more often than hashes are taken."""
    group = processes(evidence.trace)
    site = next((s.id for s in evidence.trace.sites if s.kind is SiteKind.SERIES and s.path == "grad_norm"), None)
    if site is None or gradients.agreed is None:
        return gradients.step
    table = evidence.trace.table("scalars", ("step", "value", "rank"), site=site)
    after = _apart(table, [_folder(group, rank) for rank in (_other(group, gradients), *gradients.ranks[:1])])
    after = after[(after > gradients.agreed) & (after <= gradients.step)]
    return int(after[0]) if len(after) else gradients.step


def _other(group: dict[int, Process], one: Difference) -> int:
    return next((rank for rank in group if rank not in one.ranks), next(iter(group)))


def _folder(group: dict[int, Process], rank: int) -> int:
    return group[rank].folder


def _apart(table: dict[str, np.ndarray], folders: list[int]) -> np.ndarray:
    """Steps at which two ranks recorded different norms."""
    first, second = (
        {int(step): float(value) for step, value in zip(table["step"][mine], table["value"][mine], strict=True)}
        for mine in (table["rank"] == folder for folder in folders)
    )
    both = sorted(first.keys() & second.keys())
    return np.array([s for s in both if not abs(first[s] - second[s]) <= APART * max(abs(first[s]), abs(second[s]))])
