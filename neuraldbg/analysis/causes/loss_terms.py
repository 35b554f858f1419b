"""What was recorded of each term of a loss, over the run, and where in the user's files to look for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neuraldbg.analysis.causes.loop_reading import text_at
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Site, SiteKind

Fact = dict[str, Any]
NUMERIC = ("mse", "l1", "smooth_l1", "huber")
OVER_CLASSES = ("cross_entropy", "nll", "picked_log_prob")
BOUNDED_BELOW = (*NUMERIC, *OVER_CLASSES, "bce", "bce_with_logits", "kl_div")
_WRITTEN = {  # how people write a loss
    "cross_entropy": r"cross_entropy|CrossEntropyLoss",
    "nll": r"nll_loss|NLLLoss",
    "picked_log_prob": r"log_softmax|LogSoftmax",
    "bce": r"binary_cross_entropy\b|BCELoss",
    "bce_with_logits": r"binary_cross_entropy_with_logits|BCEWithLogitsLoss",
    "mse": r"mse_loss|MSELoss",
    "l1": r"l1_loss|L1Loss",
    "smooth_l1": r"smooth_l1_loss|SmoothL1Loss",
    "huber": r"huber_loss|HuberLoss",
    "kl_div": r"kl_div|KLDivLoss",
}
_BY_HAND = {"mse": r"\*\* ?2|\.pow\(2\)|square\(", "l1": r"abs\("}
_CLASSIFIES = re.compile(
    r"argmax|accuracy|\bacc\b|\bcorrect\b|n(um)?_?classes|confusion|\brecall\b|\bf1\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class LossTerm:
    """One term of the loss of one line that calls backward: what was seen of it, earliest first."""

    source_id: int
    number: int
    facts: tuple[Fact, ...]

    @property
    def kind(self) -> str:
        return str(self.facts[0]["kind"])

    @property
    def first(self) -> Fact:
        return self.facts[0]

    @property
    def last(self) -> Fact:
        return self.facts[-1]

    @property
    def step(self) -> int:
        return int(self.first.get("at_step", 0))

    def get(self, name: str) -> Any:
        """The latest value that was recorded."""
        return next((fact[name] for fact in reversed(self.facts) if fact.get(name) is not None), None)

    def all(self, name: str) -> list[Any]:
        return [fact[name] for fact in self.facts if fact.get(name) is not None]

    @property
    def labels(self) -> dict[float, int]:
        return {float(label): int(count) for label, count in self.last.get("labels") or ()}


def loss_terms(evidence: Evidence) -> list[LossTerm]:
    return evidence.once("loss terms", lambda: list(_terms(evidence)))


def _terms(evidence: Evidence) -> Iterator[LossTerm]:
    grouped: dict[tuple[int, int, str], list[Fact]] = {}
    for fact in evidence.facts("loss_input"):
        grouped.setdefault((fact["source_id"], fact["term"], fact["kind"]), []).append(fact)
    for (source, number, _), facts in grouped.items():
        yield LossTerm(source, number, tuple(facts))


def not_recorded(evidence: Evidence, kind: str) -> bool:
    """True, and said once, where losses were not looked into."""
    if evidence.facts("loss_input") or not evidence.backwards:
        return False
    evidence.cannot(kind, "no loss of a known form was seen (or only the ledger was recorded)")
    return True


# -- where to look -------------------------------------------------------------------------------------------------


def line_of_loss(evidence: Evidence, term: LossTerm) -> str | None:
    """The line that names the loss function where there is one, else the line that calls backward. Where the line that
    computed it is known: that one, or the one that gave the function the name it is called by there."""
    called, computed = evidence.source(term.source_id), term.get("line")
    names = [name for name in (_WRITTEN.get(term.kind), _BY_HAND.get(term.kind)) if name]
    if computed is not None:
        text = text_at(evidence, computed).partition("#")[0]
        there = not names or any(re.search(name, text) for name in names)
        found = computed if there else _named_there(evidence, names, text)
        if found is not None:
            return found
    return next((line for line in (written(evidence, name, near=called) for name in names) if line), called)


def _named_there(evidence: Evidence, names: list[str], text: str) -> str | None:
    """`criterion = nn.MSELoss()` of the line `loss = criterion(model(x), y)`, where there is one such line."""
    words = set(re.findall(r"\w+", text))
    matching = [line for fact in evidence.facts("source_file") for name in names for line in _matching(fact, name)]
    given = [f"{file}:{number}" for file, number in matching]
    fitting = [line for line in given if words & set(_assigned(text_at(evidence, line)))]
    return fitting[0] if len(set(fitting)) == 1 else None


def _assigned(text: str) -> list[str]:
    """`criterion` of `self.criterion = nn.MSELoss()`."""
    before, equals, _ = text.partition("=")
    return re.findall(r"\w+", before)[-1:] if equals else []


def written(evidence: Evidence, pattern: str | None, *, near: str | None = None) -> str | None:
    """The user's line that matches; of several the last one before the line `near`, or the first of a few."""
    if pattern is None:
        return None
    found = [line for fact in evidence.facts("source_file") for line in _matching(fact, pattern)]
    if near is not None:
        file, _, number = near.rpartition(":")
        before = [line for line in found if line[0] == file and line[1] <= int(number)]
        if before:
            return "{}:{}".format(*before[-1])
    return "{}:{}".format(*found[0]) if 1 <= len(found) <= 3 else None


def _matching(fact: Fact, pattern: str) -> Iterator[tuple[str, int]]:
    """Imports and definitions do not count."""
    for number, line in enumerate(fact["text"].splitlines(), start=1):
        bare = line.split("#", 1)[0].strip()
        if not bare.startswith(("import ", "from ", "def ", "class ", '"""')) and re.search(pattern, bare):
            yield fact["file"], number


def speaks_of_classes(evidence: Evidence) -> str | None:
    """A word of the user's files that belongs to classification: accuracy, argmax, num_classes, ..."""
    for fact in evidence.facts("source_file"):
        for line in fact["text"].splitlines():
            word = _CLASSIFIES.search(line.split("#", 1)[0])
            if word is not None:
                return word.group(0)
    return None


def place_of(evidence: Evidence, site: int | None, otherwise: int | None = None) -> tuple[str | None, str | None]:
    """Layer and line of a module. An operation in the root's own forward is placed at the layer that feeds it."""
    chosen = evidence.sites.get(-1 if site is None else site)
    if chosen is None:
        return None, None
    if chosen.kind is SiteKind.MODEL and otherwise is not None:
        chosen = evidence.sites.get(otherwise, chosen)
    layer = None if chosen.kind is SiteKind.MODEL else evidence.name(chosen)
    return layer, line_of_site(evidence, chosen)


def output_layer(evidence: Evidence, term: LossTerm) -> str | None:
    """The layer that made what the loss was given."""
    return place_of(evidence, term.get("output_layer"))[0]


def line_of_site(evidence: Evidence, site: Site) -> str | None:
    """Where a module is called, or created when a container calls it."""
    parent = site.path.rpartition(".")[0]
    holder = next((one for one in evidence.sites.values() if one.model == site.model and one.path == parent), None)
    called_by_container = holder is not None and holder.op in ("Sequential", "ModuleList")
    root = evidence.sites.get(-1 if site.model is None else site.model)
    if parent == "" and root is not None:
        called_by_container = root.op == "Sequential"
    return (site.defined or site.source) if called_by_container else (site.source or site.defined)
