"""What the data causes share: the batches of every update by their hash, the set behind them, lines that name it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Site

Fact = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batches:
    """The inputs of one model's training passes, joined per update."""

    model: int
    steps: NDArray[np.int64]
    digests: NDArray[np.uint64]

    def longest_run(self) -> tuple[int, int]:
        """Start and length of the longest stretch of updates with one and the same input."""
        if not len(self.digests):
            return 0, 0
        starts = np.flatnonzero(np.append(True, self.digests[1:] != self.digests[:-1]))
        lengths = np.diff(np.append(starts, len(self.digests)))
        at = int(lengths.argmax())
        return int(starts[at]), int(lengths[at])


def training_batches(evidence: Evidence) -> list[Batches]:
    """Of every model that was trained; passes whose input could not be hashed (on a GPU) are left out."""
    return evidence.once("training batches", lambda: _batches(evidence))


def _batches(evidence: Evidence) -> list[Batches]:
    trained = evidence.of_call(Call.PASS_TRAIN)["pass_id"]
    passes = evidence.of_call(Call.PASS)
    chosen = np.isin(passes["pass_id"], trained) & (passes["digest"] != 0)
    found = []
    for model in np.unique(passes["site"][chosen]).tolist():
        mine = chosen & (passes["site"] == model)
        steps, first = np.unique(passes["step"][mine], return_index=True)
        with np.errstate(over="ignore"):
            joined = np.add.reduceat(passes["digest"][mine].astype(np.uint64), first)
        found.append(Batches(int(model), steps.astype(np.int64), joined))
    return found


def data_set(evidence: Evidence) -> Fact | None:
    """What is known of the data set behind the batches; None when no variable holds their rows."""
    fact = evidence.fact("data_set")
    return fact if fact is not None and fact.get("name") else None


def rows_of_data(evidence: Evidence) -> int | None:
    """How many samples there are to train on: those trained on where that is known, else the length of the loader."""
    fact = evidence.fact("data_set")
    if fact is not None and fact["complete"] and fact["repeated"]:
        return int(fact["distinct_seen"])
    lengths = [f["length"] for f in evidence.facts("loader") if f.get("length") and trains(evidence, f["site"])]
    return max(lengths, default=None)


def times_seen(evidence: Evidence) -> float | None:
    """How often each sample was trained on."""
    fact = evidence.fact("data_set")
    if fact is not None and fact["complete"] and fact["distinct_seen"]:
        return float(fact["rows_seen"]) / float(fact["distinct_seen"])
    epochs = [f["iterators"] for f in evidence.facts("loader_rows") if trains(evidence, f["site"])]
    return float(max(epochs)) if epochs else None


def trains(evidence: Evidence, loader: int) -> bool:
    """Whether updates happen between the batches of a loader."""
    batches = evidence.of_call(Call.BATCH, site=loader)["seq"]
    updates = evidence.of_call(Call.STEP, Call.STEP_MANUAL)["seq"]
    if not len(batches) or not len(updates):
        return False
    after = np.searchsorted(updates, batches)
    return bool(len(np.unique(after)) > max(1, len(batches) // 2))


def training_loader(evidence: Evidence) -> tuple[Site, Fact] | None:
    """The loader whose batches alternate with updates most often."""
    known = [fact for fact in evidence.facts("loader") if fact["site"] in evidence.sites]
    found = [fact for fact in known if trains(evidence, fact["site"])]
    if not found:
        return None
    best = max(found, key=lambda fact: evidence.count(Call.BATCH, site=fact["site"]))
    return evidence.sites[best["site"]], best


def assigned(evidence: Evidence, name: str | None) -> str | None:
    """The user's line that first assigns a variable (of `loader.dataset` the variable `loader`)."""
    plain = re.split(r"[.\[]", name or "")[0]
    if not plain.isidentifier():
        return None
    pattern = re.compile(rf"^\s*(?:[\w\s,.\[\]*()]*,\s*)?{plain}\s*(?:,[\w\s,*]*)?=[^=]")
    for fact in evidence.facts("source_file"):
        for number, line in enumerate(fact["text"].splitlines(), start=1):
            if pattern.match(line):
                return f"{fact['file']}:{number}"
    return None


def constant_loss(evidence: Evidence) -> float | None:
    """The loss of the best answer that does not look at the inputs; None where the labels are not known."""
    relation = evidence.fact("relation")
    if relation is not None and relation["kind"] == "mse":
        variance = relation.get("label_variance")
        return None if variance is None else float(variance)
    facts = [fact for fact in evidence.facts("label_batches") if relation is None or fact["kind"] == relation["kind"]]
    if not facts:
        return None
    counts: dict[int, int] = {}
    for _, batch in facts[-1]["batches"]:
        for label, count in batch:
            counts[label] = counts.get(label, 0) + count
    shares = np.array(list(counts.values()), float) / sum(counts.values())
    return float(-(shares * np.log(shares)).sum())
