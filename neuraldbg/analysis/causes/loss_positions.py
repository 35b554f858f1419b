"""Position numbers that do not follow the text."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loss_terms import Fact, place_of, written
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@cause(
    "position_ids_wrong",
    group="data",
    auto="S",
    explains=("slow_convergence", "loss_plateau", "train_eval_mismatch", "underfitting", "overfitting"),
)
def position_ids_wrong(evidence: Evidence) -> Iterator[Finding]:
    """Position numbers do not follow the real tokens.

    Finds: positions that count the padding in front of a text, so that the same text gets other positions with another
    amount of padding; position embeddings that are asked for one and the same number all along a row.
    Why it matters: the model learns positions that mean something else, or nothing, when texts are padded differently
    or not at all, as they are when it is used.
    Decides by: the numbers an nn.Embedding was asked for beside the token ids of the same pass. Where every pass,
    in training and evaluation, has the same width, counting from the end is consistent, and only information.
    Usual cures: positions = attention_mask.cumsum(-1) - 1, clamped at 0; or pad on the right.
    """
    for fact in evidence.facts("positions")[::-1]:
        found = _same_everywhere(fact) or _counts_padding(fact)
        if found is None:
            continue
        severity, confidence, text, numbers = found
        layer, line = place_of(evidence, fact["site"])
        yield Finding(
            "position_ids_wrong",
            severity,
            f"{layer or 'the position embedding'}: {text}",
            step=int(fact.get("at_step", 0)),
            layer=layer,
            source=written(evidence, r"arange\(|position_ids ?=") or line,
            evidence=numbers,
            confidence=confidence,
            inference="a token's position says how much padding stands before it, not where it is in the text",
        )
        return


Judged = tuple[Severity, float, str, dict[str, float | str]]


def _same_everywhere(fact: Fact) -> Judged | None:
    if fact["pattern"] != "constant" or not fact.get("training"):
        return None
    text = f"all {fact['length']} tokens of a row get the same position number"
    return Severity.CRITICAL, 0.93, text, {"length": int(fact["length"]), "position": int(fact["first"])}


def _counts_padding(fact: Fact) -> Judged | None:
    low, high = fact.get("start_of_text_min"), fact.get("start_of_text_max")
    if low is None or high is None or high - low < 1 or not fact.get("training"):
        return None
    trained, evaluated = set(fact.get("lengths_training") or ()), set(fact.get("lengths_evaluated") or ())
    differ = len(trained | evaluated) > 1
    text = f"padding in front is counted, so texts begin at positions {low} to {high} instead of 0"
    numbers: dict[str, float | str] = {
        "first_position_smallest": float(low),
        "first_position_largest": float(high),
        "pad_token": int(fact.get("pad_token", 0)),
        "widths_seen": ", ".join(map(str, sorted(trained | evaluated)[:8])),
    }
    return (Severity.WARNING, 0.93, text, numbers) if differ else (Severity.INFO, 0.5, text, numbers)
