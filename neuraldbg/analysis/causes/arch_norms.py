"""BatchNorm: too few values to normalise over, and running statistics that lag behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity

HARDLY_ANY = 2  # values per channel: nothing but a sign is left of them
FEW = 4
SETTLED = 3.0  # momentum times batches: by then 95 % of the running statistics come from the data
DIFFERENT = 0.3  # relative difference of outputs, with only the normalisation in evaluation mode
WORSE = 1.5  # times the loss in training mode


def _norms(evidence: Evidence) -> list[dict[str, Any]]:
    """The last word on each BatchNorm layer that ran in training mode."""
    last = {fact["site"]: fact for fact in evidence.facts("batchnorm")}
    return [fact for fact in last.values() if fact["training_looks"]]


def _mismatch(probe: dict[str, Any]) -> bool | None:
    """Whether the same batch gives clearly other results with the running statistics; None where no probe ran."""
    effect = probe.get("norm_effect")
    if effect is None:
        return None
    before, after = probe.get("loss_no_dropout"), probe.get("loss_norm_eval")
    if before is None or after is None:
        return bool(effect > DIFFERENT)
    return bool(effect > DIFFERENT and after > WORSE * abs(before) + 1e-12)


@cause(
    "batchnorm_batch_size_1",
    group="arch",
    auto="D",
    explains=("train_eval_mismatch", "no_learning", "oscillating_loss", "loss_plateau", "batchnorm_stats_stale"),
)
def batchnorm_batch_size_1(evidence: Evidence) -> Iterator[Finding]:
    """BatchNorm in training mode over one or very few values per channel.

    Finds: BatchNorm layers whose input holds no more than two values per channel (batch times positions), or up to four
    when the same batch then gives clearly other results in evaluation mode.
    Why it matters: the mean and variance of two values leave nothing but a sign; what reaches the next layer is noise,
    and the running statistics used in evaluation fit none of it.
    Decides by: the shape of the layer's input in training passes, and a probe of the last batch with the running
    statistics.
    Usual cures: GroupNorm or LayerNorm, larger batches, drop_last=True for a small last batch, frozen statistics in
    fine-tuning.
    """
    few = [fact for fact in _norms(evidence) if fact["fewest_values"] is not None and fact["fewest_values"] <= FEW]
    mismatch = _mismatch(evidence.probe("train_eval") or {})
    sure = [fact for fact in few if fact["fewest_values"] <= HARDLY_ANY or mismatch]
    if not sure or evidence.updates < 2:
        return
    site = evidence.sites.get(sure[0]["site"])
    yield Finding(
        "batchnorm_batch_size_1",
        Severity.WARNING,
        f"{evidence.name(sure[0]['site'])} normalises over {sure[0]['fewest_values']} "
        f"value{'s' if sure[0]['fewest_values'] > 1 else ''} per channel",
        step=0,
        layer=evidence.name(sure[0]["site"]),
        source=None if site is None else site.defined or site.source,
        evidence={
            "values_per_channel": sure[0]["fewest_values"],
            "batch": sure[0]["batch"] or 0,
            "layers": len(sure),
            "other_results_in_evaluation": "not probed" if mismatch is None else str(mismatch).lower(),
        },
        confidence=0.9,
        inference="So few values have no useful mean and variance: the layer hands on little but their signs.",
    )


@cause("batchnorm_stats_stale", group="arch", auto="R", explains=("train_eval_mismatch",))
def batchnorm_stats_stale(evidence: Evidence) -> Iterator[Finding]:
    """BatchNorm's running statistics lag far behind the data.

    Finds: BatchNorm layers whose momentum is so small for the length of the run that their running mean and variance
    are still mostly those of initialisation, while evaluation with them gives clearly other results.
    Why it matters: training uses the batch's own statistics and looks fine; evaluation uses the running ones and fails.
    Decides by: momentum times batches seen (below 3, over 5 % of the initial values are left) and a probe of the last
    batch with the running statistics.
    Usual cures: a larger momentum (the default is 0.1), more batches, or re-estimating the statistics with a few passes
    in training mode before evaluating.
    """
    stale = []
    for fact in _norms(evidence):
        site = evidence.sites.get(fact["site"])
        model = None if site is None else site.model
        passes = max(fact["tracked"] or 0, 0 if model is None else evidence.count(Call.PASS_TRAIN, site=model))
        if fact["tracks"] and fact["momentum"] is not None and passes and fact["momentum"] * passes < SETTLED:
            stale.append((fact, passes))
    mismatch = _mismatch(evidence.probe("train_eval") or {})
    if not stale or evidence.updates < 20:
        return
    fact, passes = stale[0]
    probe = evidence.probe("train_eval") or {}
    numbers = {name: probe.get(name) for name in ("norm_effect", "loss_no_dropout", "loss_norm_eval")}
    site = evidence.sites.get(fact["site"])
    yield Finding(
        "batchnorm_stats_stale",
        Severity.WARNING if mismatch else Severity.INFO,
        f"the running statistics of {evidence.name(fact['site'])} are still "
        f"{(1 - fact['momentum']) ** passes:.0%} those of initialisation after {passes:,} batches",
        step=0,
        layer=evidence.name(fact["site"]),
        source=None if site is None else site.defined or site.source,
        evidence={
            "momentum": fact["momentum"],
            "batches_seen": passes,
            "layers": len(stale),
            **{name: value for name, value in numbers.items() if value is not None},
        },
        confidence=0.92 if mismatch else 0.5,
        inference="In evaluation mode the layer normalises by statistics the data does not have.",
    )
