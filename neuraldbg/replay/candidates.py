"""Which changes to try for which cause: what would undo it, gentlest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CURES: dict[str, tuple[str, ...]] = {
    "learning_rate_too_high": ("lr x0.3", "lr x0.1", "lr x0.03", "lr x0.01", "lr x0.001"),
    "learning_rate_too_low": ("lr x10", "lr x100", "lr x1000"),
    "missing_warmup": ("warmup 50",),
    "momentum_too_high": ("momentum 0.9", "momentum 0.5"),
    "weight_decay_too_high": ("weight_decay 0",),
    "missing_gradient_clipping": ("clip 1",),
    "gradient_clip_misuse": ("clip_off",),
    "gradient_accumulation_not_scaled": ("loss_over 4",),
    "loss_reduction_scale": ("lr x0.1", "lr x0.01", "lr x0.001"),
    "missing_zero_grad": ("zero_after",),
    "step_order_wrong": ("zero_order",),
    "frozen_parameters": ("unfreeze",),
    "parameters_not_in_optimizer": ("unfreeze",),
    "stale_parameters_in_optimizer": ("unfreeze",),
    "eval_mode_in_training": ("train_mode",),
    "softmax_before_cross_entropy": ("no_softmax",),
    "sigmoid_before_bce_with_logits": ("no_sigmoid",),
    "missing_log_softmax": ("log_softmax",),
    "bad_init": ("reinit",),
    "saturating_activation": ("relu",),
    "dropout_too_high": ("dropout_off",),
    "unnormalised_input": ("standardise",),
    "data_outlier_batch": ("skip_outliers",),
    "nan_in_input": ("skip_outliers",),
    "fp16_overflow": ("fp32",),
    "fp16_underflow": ("fp32",),
    "loss_scale_issue": ("fp32",),
    "update_lost_to_rounding": ("fp32",),
}
PATCH = "patch"  # the change that the finding itself proposes, made in the copy


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing to try: changes to make together, for one cause or, as a pair, for two."""

    causes: tuple[str, ...]
    changes: tuple[str, ...]
    patch: str | None = None

    @property
    def name(self) -> str:
        return " + ".join(self.changes) or PATCH


def candidates(findings: Iterable[Mapping[str, Any]], most: int = 3) -> list[list[Candidate]]:
    """For each of the likeliest causes what may be tried, in the order of the findings; causes nothing is known for,
    and symptoms, are left out."""
    found: dict[str, list[Candidate]] = {}
    for finding in findings:
        kind = str(finding["kind"])
        if kind in found or len(found) >= most:
            continue
        patches = [each.get("patch") for each in finding.get("suggestions") or () if each.get("patch")]
        tried = [Candidate((kind,), (), patch) for patch in patches[:1]] if kind in CURES or patches else []
        tried += [Candidate((kind,), (text,)) for text in _doses(kind, finding.get("evidence") or {})]
        if tried:
            found[kind] = tried
    return list(found.values())


def _doses(kind: str, evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """The usual ones, and what the run's own numbers say."""
    accumulated = evidence.get("backwards_per_update")
    if kind == "gradient_accumulation_not_scaled" and isinstance(accumulated, int | float) and accumulated > 1:
        return (f"loss_over {accumulated:g}",)
    return CURES.get(kind, ())


def pairs(groups: list[list[Candidate]]) -> list[Candidate]:
    """Where no single change helps: the changes of two causes together. `bad_init` goes with the activation too."""
    plain = [[each for each in group if each.changes] for group in groups]
    found = [
        Candidate((*one.causes, *other.causes), (*one.changes, *other.changes))
        for at, first in enumerate(plain)
        for second in plain[at + 1 :]
        for one in first[:2]
        for other in second[:2]
    ]
    kinds = {each.causes[0] for group in plain for each in group}
    if "bad_init" in kinds and "saturating_activation" not in kinds:
        found.append(Candidate(("bad_init",), ("reinit", "relu")))
    if "saturating_activation" in kinds and "bad_init" not in kinds:
        found.append(Candidate(("saturating_activation",), ("reinit", "relu")))
    return found
