"""What several causes of the training loop read from a run: who owns what, in which order calls came, and what the
user's lines say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call
from neuraldbg.trace.tables import CALL_CODE

Fact = dict[str, Any]
CUT = re.compile(r"\.detach\(\)|\.data\b|\.numpy\(\)|\.tolist\(\)|torch\.tensor\(|as_tensor\(|from_numpy\(|Variable\(")
WEAK_CUT = re.compile(r"\.item\(\)|\bfloat\(|\bnp\.|requires_grad")
NO_GRAD = re.compile(r"no_grad|inference_mode|set_grad_enabled\(\s*False|set_grad_enabled\(mode=False")
# symptoms of a network that does not learn at all
STUCK = (
    "no_learning",
    "loss_plateau",
    "slow_convergence",
    "underfitting",
    "parameters_not_updating",
    "constant_output",
    "update_ratio_too_low",
)
# causes that a curve of a network that does not learn suggests as well
STUCK_CAUSES = (
    "learning_rate_too_low",
    "insufficient_training",
    "insufficient_capacity",
    "insufficient_data",
    "batch_size_too_small",
    "missing_normalisation",
    "unnormalised_target",
)


def latest(evidence: Evidence, kind: str, key: str) -> dict[int, Fact]:
    """The last fact of a type for each value of one field."""
    return {fact[key]: fact for fact in evidence.facts(kind)}


def variable(evidence: Evidence, site: int | None) -> str:
    """What the script calls a model or optimizer."""
    known = None if site is None else evidence.sites.get(site)
    return known.path.partition("#")[0] if known is not None and known.path else "the model"


def steps_by(evidence: Evidence) -> Counter[int]:
    """Updates of each optimizer."""
    return evidence.once("steps by optimizer", lambda: Counter(evidence.of_call(Call.STEP)["site"].tolist()))


def stepping(evidence: Evidence) -> list[int]:
    return [site for site, count in steps_by(evidence).most_common() if count >= 1 and site >= 0]


def made_at(evidence: Evidence, site: int | None) -> str | None:
    """The line that made an optimizer or model."""
    for kind in ("optimizer_made", "model_made"):
        for fact in evidence.facts(kind):
            if fact["site"] == site:
                source: str = fact["source"]
                return source
    return None


def parameters_owned(evidence: Evidence) -> dict[int, set[int]]:
    """Parameter sites of every optimizer, as it was last written down."""
    return {fact["site"]: set(fact["parameter_sites"]) for fact in evidence.facts("optimizer")}


def main_optimizer(evidence: Evidence) -> int | None:
    found = stepping(evidence)
    return found[0] if found else None


def models_of(evidence: Evidence, optimizer: int) -> set[int]:
    owned = parameters_owned(evidence).get(optimizer, set())
    return {
        site.model for number in owned if (site := evidence.sites.get(number)) is not None and site.model is not None
    }


def deepest_layer(evidence: Evidence, parameters: Iterable[int]) -> str | None:
    """The layer of the first of some parameters."""
    return next((layer for number in parameters if (layer := evidence.layer_of(number)) is not None), None)


def layers_of(evidence: Evidence, parameters: Iterable[int]) -> list[str]:
    found = [layer for number in parameters if (layer := evidence.layer_of(number)) is not None]
    return list(dict.fromkeys(found))


def listed(names: Iterable[str], most: int = 4) -> str:
    """`a, b, c and 5 more`"""
    names = list(names)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def error_of(evidence: Evidence) -> str:
    return evidence.run.error or ""


def loaded_before_training(evidence: Evidence, models: Iterable[int]) -> bool:
    """Whether load_state_dict ran on one of these models, or on a part of one, before the first update."""
    wanted = set(models)
    if any(fact["site"] in wanted for fact in evidence.facts("model_loaded")):
        return True
    first = evidence.of_call(Call.STEP)["seq"]
    limit = first[0] if len(first) else np.iinfo(np.int64).max
    rows = evidence.of_call(Call.LOAD_STATE)
    for site, seq in zip(rows["site"].tolist(), rows["seq"].tolist(), strict=True):
        known = evidence.sites.get(site)
        if known is not None and seq < limit and (known.id in wanted or known.model in wanted):
            return True
    return False


# -- the user's text -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def place(source: str | None) -> Place | None:
    if not source or ":" not in source:
        return None
    file, _, line = source.rpartition(":")
    return Place(file, int(line)) if line.isdigit() else None


def text_at(evidence: Evidence, source: str | None) -> str:
    where = place(source)
    lines = _lines(evidence, where.file) if where else []
    return lines[where.line - 1] if where and 0 < where.line <= len(lines) else ""


def between(evidence: Evidence, first: str | None, last: str | None, wanted: re.Pattern[str]) -> str | None:
    """The first line from `first` to `last` (same file) that matches, comments left aside."""
    begin, end = place(first), place(last)
    if begin is None or end is None or begin.file != end.file:
        return None
    low, high = sorted((begin.line, end.line))
    if high - low > 60:
        return None
    lines = _lines(evidence, end.file)
    for number in range(low, min(high, len(lines)) + 1):
        if wanted.search(lines[number - 1].partition("#")[0]):
            return str(Place(end.file, number))
    return None


def cut_between(evidence: Evidence, first: str | None, last: str | None) -> str | None:
    return between(evidence, first, last, CUT) or between(evidence, first, last, WEAK_CUT)


def above(evidence: Evidence, source: str | None, wanted: re.Pattern[str], reach: int = 40) -> str | None:
    """The nearest line at or above `source` that matches."""
    where = place(source)
    if where is None:
        return None
    lines = _lines(evidence, where.file)
    for number in range(min(where.line, len(lines)), max(where.line - reach, 0), -1):
        if wanted.search(lines[number - 1].partition("#")[0]):
            return str(Place(where.file, number))
    return None


def anywhere(evidence: Evidence, wanted: re.Pattern[str], *, after: str | None = None) -> str | None:
    """The first matching line of the user's files; of the file of `after` from there on."""
    start = place(after)
    files = [start.file] if start else [fact["file"] for fact in evidence.facts("source_file")]
    for file in files:
        if "site-packages" in file:
            continue
        for number, line in enumerate(_lines(evidence, file), 1):
            if (start is None or number >= start.line) and wanted.search(line.partition("#")[0]):
                return str(Place(file, number))
    return None


def _lines(evidence: Evidence, file: str) -> list[str]:
    return evidence.once(("lines", file), lambda: (evidence.text(file) or "").splitlines())


# -- order of calls --------------------------------------------------------------------------------------------------


def owners_of_lines(evidence: Evidence) -> dict[int, set[int]]:
    """Which optimizers step right after a backward line: the run of steps that follows a run of backwards owns all of
    them."""

    def compute() -> dict[int, set[int]]:
        rows = evidence.of_call(Call.BACKWARD, Call.STEP)
        backward = CALL_CODE[Call.BACKWARD]
        owners: dict[int, set[int]] = {}
        waiting: set[int] = set()
        stepped = False
        for call, source, site in zip(
            rows["call"].tolist(), rows["source"].tolist(), rows["site"].tolist(), strict=True
        ):
            if call == backward:
                if stepped:
                    waiting, stepped = set(), False
                waiting.add(source)
            else:
                stepped = True
                for line in waiting:
                    owners.setdefault(line, set()).add(site)
        return owners

    return evidence.once("owners of backward lines", compute)


def trained_models(evidence: Evidence) -> set[int]:
    """Models that gradients came back to and that an optimizer which steps owns."""
    owned = {model for optimizer in stepping(evidence) for model in models_of(evidence, optimizer)}
    return owned & set(evidence.of_call(Call.PASS_TRAIN)["site"].tolist())
