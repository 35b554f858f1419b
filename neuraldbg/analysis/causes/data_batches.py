"""Which samples the batches hold: always the same ones, copies of each other, or one class at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.data_reading import (
    Batches,
    assigned,
    data_set,
    training_batches,
    training_loader,
    trains,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.rank_data import same_on_ranks
from neuraldbg.analysis.worker_seeds import same_worker_seeds
from neuraldbg.records import Call, Finding, Severity

Fact = dict[str, Any]
FEWEST_UPDATES = 10
LATER_RUN = 30  # updates of one batch at the end of a run that began with others
FEWEST_ROWS = 20  # different ones: below that a toy problem repeats its few cases on purpose
REPLACED = 0.1  # share of followed batches that are not of the set
COPIES = 0.3  # share of rows that are copies of another
CHANCE = 10.0  # times as many equal pairs as chance would give
OF_THE_ENTROPY = 0.3
FEWEST_BATCHES = 8


@cause(
    "constant_batch",
    group="data",
    auto="S",
    explains=(
        "overfitting",
        "suspiciously_low_loss",
        "insufficient_data",
        "missing_regularisation",
        "duplicate_data",
        "data_not_shuffled",
        "insufficient_training",
        "label_shuffle_mismatch",
    ),
)
def constant_batch(evidence: Evidence) -> Iterator[Finding]:
    """The same batch is served at every step.

    Finds: a model whose training input is bit for bit the same in every update (or from some update to the end) while
    its loader or the variable it is cut from holds more samples.
    Why it matters: the loss falls as it should, but on these few samples only; the rest of the data is never seen.
    Decides by: the hash of every training input, the number of iterators made and batches drawn from the loader, and
    the rows of the data set, or the text or series, that the batch was found in. Training on the whole set in one
    batch is no fault.
    Usual cures: iterate (`for x, y in loader`) instead of calling next(iter(loader)) in the loop; move the index;
    draw new indices each step; do not seed inside the loop.
    """
    found = training_batches(evidence)
    if not found and evidence.updates:
        evidence.cannot("constant_batch", "no training input could be hashed")
    for one in found:
        start, length = one.longest_run()
        whole = length == len(one.digests)
        ends = start + length == len(one.digests)
        if length < FEWEST_UPDATES or not (whole or (ends and length >= max(LATER_RUN, len(one.digests) // 2))):
            continue
        proof = (
            _from_loader(evidence, one, start)
            or _from_set(evidence, whole=whole)
            or (_from_sequence(evidence) if whole else None)
        )
        if proof is None:
            continue
        severity, confidence, source, text, numbers = proof
        yield Finding(
            "constant_batch",
            severity,
            text if whole else f"{text}, from update {int(one.steps[start])} on",
            step=int(one.steps[start]),
            source=source or evidence.line_of(Call.PASS, site=one.model),
            evidence={"updates_with_this_batch": int(length), "updates": len(one.digests), **numbers},
            confidence=confidence,
            inference="the model is fitted to these samples and never sees the others",
        )
        return


Proof = tuple[Severity, float, str | None, str, dict[str, float | str]]


def _from_loader(evidence: Evidence, one: Batches, start: int) -> Proof | None:
    """Many batches were drawn and all are the same one, or a single one was drawn from a loader that has more."""
    begin = int(one.steps[start])
    for fact in evidence.facts("loader"):
        site = evidence.sites[fact["site"]]
        batches = evidence.of_call(Call.BATCH, site=site.id)
        drawn = batches["digest"][(batches["step"] >= begin) & (batches["digest"] != 0)]
        length, size = fact.get("length"), fact.get("batch_size")
        if not length or not size or length < 2 * size:
            continue
        used: Fact = next((f for f in reversed(evidence.facts("loader_rows")) if f["site"] == site.id), {})
        numbers: dict[str, float | str] = {
            "loader": site.path,
            "samples_in_loader": int(length),
            "batch_size": int(size),
            "batches_drawn": len(batches["step"]),
            "iterators_made": int(used.get("iterators", 0)),
        }
        if len(drawn) >= FEWEST_UPDATES and len(np.unique(drawn)) == 1 and trains(evidence, site.id):
            fresh = used.get("iterators") == used.get("batches")
            why = f"a new iterator over {site.path} is made for every step" if fresh else f"{site.path} repeats itself"
            text = f"{why}: each of {len(drawn)} batches is the same {size} of {length} samples"
            return Severity.CRITICAL, 0.96, site.source, text, numbers
        if len(batches["step"]) == 1 and _batch_of(evidence, site.path):
            text = f"one batch is drawn from {site.path} and every update uses it: {size} of {length} samples"
            return Severity.CRITICAL, 0.9, site.source, text, numbers
    return None


def _batch_of(evidence: Evidence, loader: str) -> bool:
    """Whether the training rows were found in the data set of a loader that was asked once."""
    fact = data_set(evidence)
    return (
        fact is not None
        and fact["rows"] >= 2 * fact["batch"]
        and fact["distinct_seen"] <= fact["batch"]
        and (fact["name"].startswith(loader) or not fact.get("held_out"))
    )


def _from_set(evidence: Evidence, *, whole: bool) -> Proof | None:
    """The batch is a piece of a larger variable; the rest of it is neither trained on nor held out."""
    fact = data_set(evidence)
    if fact is None or fact["rows"] < 2 * fact["batch"] or fact.get("held_out") or fact["foreign"]:
        return None
    if whole and fact["distinct_seen"] > fact["batch"]:
        return None
    chosen_once = whole and fact["same_object"] >= fact["followed"] - 1
    numbers: dict[str, float | str] = {
        "data_set": fact["name"],
        "samples_in_data_set": int(fact["rows"]),
        "batch_size": int(fact["batch"]),
    }
    text = f"every update is given the same {fact['batch']} of the {fact['rows']} samples in {fact['name']}"
    if chosen_once:
        return Severity.INFO, 0.4, assigned(evidence, fact.get("whole_named")), text, numbers
    return Severity.CRITICAL, 0.92, None, text, numbers


def _from_sequence(evidence: Evidence) -> Proof | None:
    """The rows are cut from a long text or series, anew for every update, and always at the same places."""
    fact = evidence.fact("sequence_cut")
    if fact is None:
        return None
    numbers: dict[str, float | str] = {
        "sequence": fact["name"],
        "length": int(fact["length"]),
        "batch_size": int(fact["batch"]),
        "window": int(fact["window"]),
    }
    text = (
        f"every update is given the same {fact['batch']} pieces of {fact['window']} out of the {fact['length']} "
        f"elements of {fact['name']}"
    )
    if fact["same_object"]:
        return Severity.INFO, 0.4, None, text, numbers
    return Severity.CRITICAL, 0.93, None, text, numbers


@cause(
    "duplicate_data",
    group="data",
    auto="S",
    explains=("overfitting", "insufficient_data", "missing_regularisation", "suspiciously_low_loss"),
)
def duplicate_data(evidence: Evidence) -> Iterator[Finding]:
    """The same samples occur again and again in the training set.

    Finds: a data set most of whose rows are copies of others, or a loader that hands out the same samples several
    times within one epoch, or hands them to several ranks alike, or whose workers draw the same random numbers.
    Why it matters: the set is far smaller than it looks; the model memorises it, and metrics computed on a random
    split of it are too good.
    Decides by: a hash of every row with its target. Equal rows that chance explains (few categories, short codes) and
    samplers with replacement do not count. Of workers, a hash of their random generators after worker_init_fn, where
    their first batch drew from them; the same on several ranks is information.
    Usual cures: a different seed for each shard or worker (worker_init_fn, get_worker_info); shard an IterableDataset
    over its workers; drop copies before splitting.
    """
    finding = _copies_in_set(evidence) or _copies_in_epoch(evidence) or same_on_ranks(evidence)
    finding = finding or same_worker_seeds(evidence)
    if finding is not None:
        yield finding


def _copies_in_set(evidence: Evidence) -> Finding | None:
    fact = data_set(evidence)
    if fact is None or fact.get("chance_pairs") is None:
        return None
    if int(fact.get("foreign") or 0) > REPLACED * int(fact.get("followed") or 0):
        return None  # later batches are not of it: it is made anew while training goes on
    rows, distinct = int(fact["rows"]), int(fact.get("distinct_pairs") or fact["distinct"])
    copies = 1 - distinct / rows
    pairs = 0.5 * rows * (rows / distinct - 1)
    classes = fact.get("target_values") or 0
    few = distinct < max(FEWEST_ROWS, 4 * classes if classes <= distinct // 2 else 0)
    if copies < COPIES or few or pairs < CHANCE * float(fact["chance_pairs"]):
        return None
    period = fact.get("period")
    text = f"{fact['name']} holds {distinct} different samples among {rows}"
    text += f": rows 0 to {period - 1} again and again" if period else ""
    numbers: dict[str, float | str] = {
        "samples": int(rows),
        "different": int(distinct),
        "share_of_copies": copies,
        "copies_of_each": rows / distinct,
    }
    return Finding(
        "duplicate_data",
        Severity.WARNING,
        text,
        step=0,
        source=assigned(evidence, fact["name"]),
        evidence=numbers,
        confidence=0.92 if period or copies > 0.5 else 0.75,
        inference="each copy adds nothing: in effect the model is trained on the different samples alone",
    )


def _copies_in_epoch(evidence: Evidence) -> Finding | None:
    for fact in evidence.facts("loader"):
        used = next((f for f in reversed(evidence.facts("loader_rows")) if f["site"] == fact["site"]), None)
        if used is None or not trains(evidence, fact["site"]) or not used["rows"] or fact.get("replacement"):
            continue
        if fact.get("sampler") not in ("SequentialSampler", "RandomSampler", "_InfiniteConstantSampler"):
            continue
        rows, distinct = used["rows"], used["distinct"]
        copies = 1 - distinct / rows
        if distinct < FEWEST_ROWS or copies < COPIES or used["epoch_batches"] < 2:
            continue
        workers = int(fact.get("workers") or 0)
        every = used["least_times"] == used["most_times"] == workers > 1
        held = data_set(evidence)
        if held is not None and held["rows"] > held["batch"] and not every:
            continue  # the set itself was looked at
        site = evidence.sites[fact["site"]]
        text = f"one epoch of {site.path} holds {distinct} different samples among {rows}"
        text += f": each of its {workers} workers delivers all of them" if every else ""
        numbers: dict[str, float | str] = {
            "samples_in_epoch": int(rows),
            "different": int(distinct),
            "times_each": rows / distinct,
            "workers": int(workers),
        }
        return Finding(
            "duplicate_data",
            Severity.WARNING if every or copies > 0.45 else Severity.INFO,
            text,
            step=0,
            source=assigned(evidence, site.path) or site.source,
            evidence=numbers,
            confidence=0.93 if every else 0.75,
            inference="an epoch is shorter than it looks and every sample counts several times",
        )
    return None


@cause(
    "data_not_shuffled",
    group="data",
    auto="R",
    explains=(
        "oscillating_loss",
        "loss_spike",
        "no_learning",
        "diverging_loss",
        "loss_plateau",
        "constant_output",
        "exploding_gradient",
        "underfitting",
        "missing_gradient_clipping",
        "learning_rate_too_high",
        "class_imbalance",
        "overfitting",
        "insufficient_training",
        "batch_size_too_small",
        "update_ratio_too_high",
        "suspiciously_low_loss",
        "dead_units",
    ),
)
def data_not_shuffled(evidence: Evidence) -> Iterator[Finding]:
    """Batches come ordered by class.

    Finds: a classifier whose batches hold (almost) one class each, served in the order of a sorted data set.
    Why it matters: each stretch of batches teaches the model to answer one class and to forget the others.
    Decides by: the entropy of the labels inside a batch compared with that over all batches, together with the proof
    of order: the loader has shuffle=False, or the batches are consecutive rows of a set sorted by its targets.
    Usual cures: DataLoader(..., shuffle=True), or a new random permutation of the indices in every epoch.
    """
    fact = _label_batches(evidence)
    if fact is None:
        return
    order = _order(evidence)
    inside, overall, expected, classes, batches = _entropies(fact)
    if classes < 2 or batches < FEWEST_BATCHES or expected <= 0 or inside > OF_THE_ENTROPY * expected:
        return
    loud = order is not None
    text = f"batches hold one class at a time: {_share(inside)} bits of label entropy in a batch, {overall:.2g} overall"
    yield Finding(
        "data_not_shuffled",
        Severity.CRITICAL if loud else Severity.INFO,
        text,
        step=0,
        source=order[1] if order is not None else evidence.source(fact["source_id"]),
        evidence={
            "entropy_in_batch_bits": inside,
            "entropy_overall_bits": overall,
            "entropy_if_shuffled_bits": expected,
            "classes": int(classes),
            "batches": int(batches),
            "order": order[0] if order is not None else "not proven",
        },
        confidence=0.93 if loud else 0.4,
        inference="the gradient of such a batch moves every prediction towards its one class",
    )


def _share(bits: float) -> str:
    return "0" if bits < 0.005 else f"{bits:.2g}"


def _label_batches(evidence: Evidence) -> Fact | None:
    """Of the loss that is called most often; two lines that call one loss (real and fake) are no classifier."""
    last = {(fact["kind"], fact["source_id"]): fact for fact in evidence.facts("label_batches")}
    if not last:
        return None
    best = max(last.values(), key=lambda fact: fact["calls"])
    others = sum(fact["calls"] for fact in last.values()) - best["calls"]
    return best if others <= 0.05 * best["calls"] else None


def _entropies(fact: Fact) -> tuple[float, float, float, int, int]:
    """Inside a batch, over all batches, and what a random batch would have; in bits."""
    by_step: dict[int, dict[int, int]] = {}
    for step, counts in fact["batches"]:
        total = by_step.setdefault(step, {})
        for label, count in counts:
            total[label] = total.get(label, 0) + count
    labels = sorted({label for counts in by_step.values() for label in counts})
    table = np.array([[counts.get(label, 0) for label in labels] for counts in by_step.values()], float)
    table = table[table.sum(1) >= 4]
    if not len(table) or len(labels) < 2:
        return 0.0, 0.0, 0.0, len(labels), len(table)
    whole = table.sum(0)
    inside = float(np.mean([_entropy(row) for row in table]))
    draw = np.random.default_rng(0).multinomial(int(np.median(table.sum(1))), whole / whole.sum(), size=64)
    return inside, _entropy(whole), float(np.mean([_entropy(row) for row in draw])), len(labels), len(table)


def _entropy(counts: NDArray[Any]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _order(evidence: Evidence) -> tuple[str, str | None] | None:
    """Proof that the order of the data set is that of the batches, and the line to look at."""
    loader = training_loader(evidence)
    if loader is not None:
        site, fact = loader
        plain = fact.get("sampler") == "SequentialSampler" and fact.get("batch_sampler") in ("BatchSampler", "NoneType")
        if plain and fact.get("shuffled") is False:
            return f"{site.path} has shuffle=False", assigned(evidence, site.path) or site.source
        return None
    fact = data_set(evidence) or {}
    followed = fact.get("followed") or 0
    small = followed >= FEWEST_BATCHES and fact["rows"] >= 4 * fact["batch"]
    if small and fact["in_order"] >= 0.8 * followed and not math.isclose(fact["rows"], fact["batch"]):
        return f"batches are consecutive rows of {fact['name']}", evidence.line_of(Call.PASS)
    return None
