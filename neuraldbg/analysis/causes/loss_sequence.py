"""Sequences: padding that counts, targets at the wrong place, masks that let through what they should hide."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loss_terms import (
    Fact,
    LossTerm,
    line_of_loss,
    loss_terms,
    not_recorded,
    place_of,
    written,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

_SHIFTING = r"\[:, ?1:\]|\[1:\]|\[\.\.\., ?1:\]|roll\(|\[:, ?:-1"
EXACT = 0.99  # share of targets that must be input tokens moved by the same number of positions
_STUCK = ("no_learning", "constant_output", "loss_plateau", "underfitting", "slow_convergence", "insufficient_capacity")


def shift_of(term: LossTerm) -> int | None:
    """By how many positions the targets are the inputs, moved; None where they are not, or it is not clear."""
    for fact in term.facts:
        clear = (fact.get("shift_next_best") or 0.0) < 0.9
        if (fact.get("shift_match") or 0.0) >= EXACT and clear:
            return int(fact["shift"])
    return None


@cause(
    "padding_not_masked",
    group="loss",
    auto="S",
    explains=("suspiciously_low_loss", "slow_convergence", "class_imbalance", "loss_plateau", "constant_output"),
)
def padding_not_masked(evidence: Evidence) -> Iterator[Finding]:
    """Padding positions count in the loss or in a mean.

    Finds: targets of one label that stand exactly where the input is padding (a run of one token at the end of rows of
    different length), are most of all targets, and are not ignored by the loss.
    Why it matters: the loss is an average over mostly padding. It looks low because padding is trivial, and real tokens
    get a small share of the gradient.
    Decides by: comparing the runs at the ends of input rows and target rows, the loss's ignore_index, and the loss on
    padding beside the loss on real tokens; for a mean over positions the graph, and whether widths differ.
    Usual cures: ignore_index=PAD in the loss, a mask over per-token losses, a mean over real tokens only.
    """
    for term in loss_terms(evidence):
        share = max(term.all("pad_share"), default=0.0)
        if share < 0.2 or term.get("weighted"):
            continue
        label, same = term.get("pad_label"), term.get("label_major") == term.get("pad_label")
        easy = term.get("loss_on_major") if same else term.get("pad_loss")
        hard = term.get("loss_on_rest") if same else term.get("real_loss")
        harmful = share >= 0.5 and easy is not None and hard is not None and hard > 2 * easy
        yield Finding(
            "padding_not_masked",
            Severity.WARNING if harmful else Severity.INFO,
            f"{share:.0%} of the targets are padding (label {label}) and count in the loss",
            step=term.step,
            source=line_of_loss(evidence, term),
            evidence={
                "pad_share": share,
                "pad_label": float(label),
                "pad_token": int(term.get("pad_token")),
                **(
                    {"loss_on_padding": easy, "loss_on_real_tokens": hard}
                    if easy is not None and hard is not None
                    else {}
                ),
            },
            confidence=0.9 if harmful else 0.5,
            inference="most of the loss and of its gradient is about padding",
        )
        return
    yield from _pooled(evidence)


def _pooled(evidence: Evidence) -> Iterator[Finding]:
    """A mean over padded positions: the same text gives another mean with another amount of padding."""
    widths = evidence.fact("token_widths") or {}
    differ = len({*(widths.get("training") or ()), *(widths.get("evaluated") or ())}) > 1
    for fact in evidence.facts("pooling"):
        if fact["pad_share"] < 0.2:
            continue
        layer, _ = place_of(evidence, fact.get("site"))
        yield Finding(
            "padding_not_masked",
            Severity.WARNING if differ else Severity.INFO,
            f"{layer or 'the model'} takes a mean over all positions, and {fact['pad_share']:.0%} of them are padding",
            step=int(fact.get("at_step", 0)),
            layer=layer,
            source=written(evidence, r"\.mean\((dim ?= ?)?1|\.mean\(-2|torch\.mean\("),
            evidence={
                "pad_share": fact["pad_share"],
                "pad_token": int(fact["pad_token"]),
                "widths_differ": str(differ),
            },
            confidence=0.82 if differ else 0.5,
            inference="rows are padded to different widths, so the mean of the same text changes with its neighbours",
        )
        return


@cause("target_leakage", group="loss", auto="S", explains=("suspiciously_low_loss", "overfitting"))
def target_leakage(evidence: Evidence) -> Iterator[Finding]:
    """The model is given what it is asked to predict.

    Finds: an input column that is the target itself, an affine or monotone copy of it, or that gives the class away in
    every sample; a recurrent network that reads backwards as well and is asked for the next token.
    Why it matters: the loss falls to almost nothing because the answer is in the question. Where the model is used,
    that column is unknown.
    Decides by: the inputs of the model and the targets of its loss, over several batches: what is left of the target
    after a straight line (or the order) of one column. Reconstruction (the whole input is the target) does not count,
    nor does a target that nothing else in the input says anything about: then the copy is the task.
    Usual cures: drop the column; cut windows so that they end before the value to be forecast.
    """
    if not_recorded(evidence, "target_leakage"):
        return
    for fact in evidence.facts("leak"):
        if fact.get("explained_by_others", 0.0) < 0.05 or not _is_leak(fact):
            continue
        column, columns = int(fact["column"]), int(fact["columns"])
        shown = "the last column" if fact.get("last_column") else f"column {column}"
        yield Finding(
            "target_leakage",
            Severity.CRITICAL,
            f"{shown} of the model's input gives the target away in all {fact['rows']} samples looked at",
            step=0,
            source=evidence.source(fact["source_id"]),
            evidence={
                "column": int(column),
                "columns": int(columns),
                "samples": int(fact["rows"]),
                "target_left_unexplained": float(fact["left_unexplained"]),
                "explained_by_other_columns": float(fact["explained_by_others"]),
            },
            confidence=0.9,
            inference="the model learns to copy that column; where it is not known yet, it has nothing to go by",
        )
        return
    yield from _reads_backwards(evidence)


def _is_leak(fact: Fact) -> bool:
    """In a sequence only the newest entry counts: to recall an old one is a task people set on purpose."""
    if fact.get("recurrent") or len(fact.get("sample_shape") or ()) > 1:
        return bool(fact.get("last_column"))
    return int(fact.get("copies", 1)) <= max(2, int(fact["columns"]) // 2)


def _reads_backwards(evidence: Evidence) -> Iterator[Finding]:
    for term in loss_terms(evidence):
        if shift_of(term) == 1 and term.get("recurrent") == "both ways":
            yield Finding(
                "target_leakage",
                Severity.CRITICAL,
                "a bidirectional recurrent network is trained to predict the next token, which it has already read",
                step=term.step,
                source=written(evidence, r"bidirectional ?= ?True") or line_of_loss(evidence, term),
                evidence={"shift": 1.0, "match": float(term.get("shift_match") or 1.0)},
                confidence=0.9,
                inference="the backward direction carries the answer to every position",
            )
            return


@cause(
    "missing_causal_mask",
    group="loss",
    auto="S",
    explains=("suspiciously_low_loss", "target_leakage", "overfitting", "train_eval_mismatch"),
)
def missing_causal_mask(evidence: Evidence) -> Iterator[Finding]:
    """A model that predicts the next token can see it.

    Finds: attention over whole sequences, without a causal mask, in a model whose targets are its inputs moved by one.
    Why it matters: every position reads its answer off the next one. The loss goes to zero, and generation, where the
    next token does not exist yet, produces nonsense.
    Decides by: the shift between inputs and targets, and the attention weights or masks in the graph: keys after the
    query have weight. Where the experiment was made, changing a later token changes an earlier output (of a model that
    returns its loss: of the last layer with one output per position).
    Usual cures: is_causal=True, or nn.Transformer.generate_square_subsequent_mask.
    """
    if not_recorded(evidence, "missing_causal_mask"):
        return
    term = next((one for one in loss_terms(evidence) if shift_of(one) == 1), None)
    looks = _first_unmasked(evidence)
    tried = _experiment(evidence, looks)
    if term is None or not _leaks(evidence, term, looks, tried):
        return
    site = looks["site"] if looks is not None else (tried or {}).get("layer_site")
    layer, line = place_of(evidence, site)
    if tried is not None and tried.get("layer_site") == site and tried.get("op"):
        line = tried.get("source") or line  # the operation itself, in an attention written by hand
    yield Finding(
        "missing_causal_mask",
        Severity.CRITICAL,
        f"the targets are the next tokens, and {layer or 'the attention'} lets every position see them: no causal mask",
        step=term.step,
        layer=layer,
        source=line or line_of_loss(evidence, term),
        evidence={
            "shift": 1.0,
            "match": float(max(term.all("shift_match"), default=1.0)),
            **({"weight_on_later_keys": float(looks.get("future_share", 1.0))} if looks is not None else {}),
            **({"later_tokens_change_output": float(tried.get("leak_share") or 0.0)} if tried is not None else {}),
        },
        confidence=0.96 if tried is not None else 0.92,
        inference="the answer to each position is in its input",
    )


def _leaks(evidence: Evidence, term: LossTerm, looks: Fact | None, tried: Fact | None) -> bool:
    if tried is not None:
        by_attention = looks is not None or (bool(tried.get("op")) and term.get("recurrent") != "both ways")
        return bool(tried.get("leaks")) and by_attention
    if looks is not None and looks.get("token_inputs", 1) > 1:
        why = "several token inputs, and no experiment told which attention reads which"
        evidence.cannot("missing_causal_mask", why)
        return False
    return looks is not None


def _experiment(evidence: Evidence, looks: Fact | None) -> Fact | None:
    """Unless it took another axis for the time."""
    tried = evidence.probe("future_token")
    if tried is None or looks is None or tried.get("length") in (None, looks["shape"][-1]):
        return tried
    return None


def _sees_future(fact: Fact) -> bool:
    shape = tuple(fact.get("shape") or ())
    if not fact.get("attention") or len(shape) < 3 or shape[-1] != shape[-2] or shape[-1] < 3 or fact.get("is_causal"):
        return False
    if fact.get("future_share") is None:
        return fact.get("op") != "softmax" and not fact.get("masked")
    return float(fact["future_share"]) > 0.5


def _first_unmasked(evidence: Evidence) -> Fact | None:
    """Of several attentions without a mask the one that comes first in the model."""
    unmasked = [fact for fact in evidence.facts("attention") if _sees_future(fact)]
    return min(unmasked, key=lambda fact: fact.get("site") or 0, default=None)


@cause(
    "attention_mask_inverted",
    group="loss",
    auto="R",
    explains=(
        *_STUCK,
        "fully_masked_attention",
        "nan_loss",
        "nan_activation",
        "padding_not_masked",
        "label_shuffle_mismatch",
    ),
)
def attention_mask_inverted(evidence: Evidence) -> Iterator[Finding]:
    """The attention mask hides the real tokens and shows the padding.

    Finds: attention whose visible keys are the padding of the input and whose hidden keys are the real tokens.
    Why it matters: the model reads nothing but padding. Masks differ in polarity between functions (True hides a key in
    key_padding_mask and lets it through in scaled_dot_product_attention), and nothing raises an error.
    Decides by: which keys have weight, or pass the mask, beside the token ids of the same pass; where the experiment
    was made, gradients reach padding and not real tokens.
    Usual cures: negate the mask.
    """
    tried = evidence.probe("token_dependence")
    for fact in sorted(evidence.facts("attention"), key=lambda fact: fact.get("site") or 0):
        if fact.get("real_seen") is None or fact["real_seen"] > 0.05 or fact.get("pad_seen", 0.0) < 0.95:
            continue
        layer, line = place_of(evidence, fact.get("site"))
        yield Finding(
            "attention_mask_inverted",
            Severity.CRITICAL,
            f"{layer or 'the attention'} sees the padding (token {fact['pad_token']}) and none of the real tokens",
            step=int(fact.get("at_step", 0)),
            layer=layer,
            source=written(evidence, r"mask\w* ?= ?.*(!=|==|ne\(|eq\(|~|bool)") or line,
            evidence={
                "real_tokens_seen": float(fact["real_seen"]),
                "padding_seen": float(fact["pad_seen"]),
                "pad_token": int(fact["pad_token"]),
                **(
                    {"gradient_on_real_tokens": float(tried["real_gradient"] or 0.0)}
                    if tried and "real_gradient" in tried
                    else {}
                ),
            },
            confidence=0.96,
            inference="the mask has the wrong polarity: what it should hide is all that is left",
        )
        return


@cause("label_shift_wrong", group="loss", auto="S", explains=(*_STUCK, "suspiciously_low_loss"))
def label_shift_wrong(evidence: Evidence) -> Iterator[Finding]:
    """Targets are moved by the wrong number of positions.

    Finds: targets that are exactly the input tokens, two or more positions ahead (shifted twice), or not moved at all
    in a model that only sees the past (it copies its input).
    Why it matters: shifted twice, the model learns the token after the next; not shifted, it learns to repeat. The loss
    looks normal or very good, and generation is wrong.
    Decides by: comparing the ids that went into the model with the targets of its loss, position by position. A copy
    is only reported where the model is causal; several heads that look further ahead beside one at distance 1 are not.
    Usual cures: shift once: in the data set or in the loss, not in both.
    """
    if not_recorded(evidence, "label_shift_wrong"):
        return
    terms = loss_terms(evidence)
    shifts = [shift_of(term) for term in terms]
    if 1 in shifts:
        return
    for term, shift in zip(terms, shifts, strict=True):
        if shift is None or shift < 0 or (shift == 0 and not _causal(evidence, term)):
            continue
        far = f"{shift} tokens ahead of the input: shifted twice" if shift else "the input tokens: nothing is shifted"
        yield Finding(
            "label_shift_wrong",
            Severity.CRITICAL,
            f"the targets are {far}",
            step=term.step,
            source=written(evidence, _SHIFTING, near=evidence.source(term.source_id)) or line_of_loss(evidence, term),
            evidence={
                "shift": int(shift),
                "match": float(max(term.all("shift_match"))),
                "match_of_next_token": float(term.get("shift_of_next") or 0.0),
            },
            confidence=0.95 if shift > 1 else 0.9,
            inference="a next-token model needs targets exactly one position ahead of its inputs",
        )
        return


def _causal(evidence: Evidence, term: LossTerm) -> bool:
    """Whether no position sees a later one: only then is a target equal to the input a mistake."""
    tried = evidence.probe("future_token")
    if tried is not None and tried.get("target_shift") == 0:
        return not tried.get("leaks")
    if term.get("recurrent") == "forwards":
        return not evidence.facts("attention")
    masked = [fact for fact in evidence.facts("attention") if fact.get("attention")]
    return bool(masked) and all(fact.get("is_causal") or fact.get("future_share") == 0.0 for fact in masked)
