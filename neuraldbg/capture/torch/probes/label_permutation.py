"""Do inputs and labels belong together: does what is learned from some batches help on another one?"""

from __future__ import annotations

import math

from neuraldbg.capture.torch.probes.bench import Bench, Fact, Skip, finite
from neuraldbg.capture.torch.probes.overfit import trainable
from neuraldbg.capture.torch.probes.sample import Sample
from neuraldbg.capture.torch.probes.trial import Arm, Change, Trial, mean_loss, shuffled_loss

UPDATES = 60
RATES = (1.0, 0.1)


def label_permutation(bench: Bench) -> Fact:
    own = bench.specimen
    samples = [sample for sample in own.samples if _rows(sample) >= 4]
    trainable(bench.samples, own.traces)
    if len(samples) < 3:
        raise Skip("fewer than three recorded batches of at least four samples with labels")
    folds = [_fold(bench, samples[0::2], samples[1::2]), _fold(bench, samples[1::2], samples[0::2])]
    true, permuted, spread = (_mean([fold[name] for fold in folds]) for name in ("true", "permuted", "std"))
    first, last = (_mean([fold[name] for fold in folds]) for name in ("train_first", "train_last"))
    final = bench.stage.weights(initial=False)
    gain = (permuted - true) / max(spread / math.sqrt(2), 1e-3 * abs(permuted), 1e-12)
    learned = last < 0.9 * first
    return {
        **bench.about(samples[0], "initial" if own.initial else "final"),
        "batches": len(samples),
        "samples": sum(_rows(sample) for sample in samples),
        "updates": int(folds[0]["updates"]),
        "train_first": finite(first),
        "train_last": finite(last),
        "held_true": finite(true),
        "held_permuted": finite(permuted),
        "held_permuted_std": finite(spread),
        "held_initial": finite(_mean([fold["initial"] for fold in folds])),
        "gain": finite(gain),
        "final_true": finite(mean_loss(bench.stage, samples, final)),
        "final_permuted": finite(_mean([shuffled_loss(bench.stage, sample, final)[0] for sample in samples])),
        "related": (gain > 3.0) if learned and math.isfinite(gain) else None,
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _rows(sample: Sample) -> int:
    targets = list(sample.tape.targets.values())
    if len(targets) != 1 or targets[0].dim() == 0:
        return 0
    return int(targets[0].shape[0])


def _fold(bench: Bench, train: list[Sample], held: list[Sample]) -> dict[str, float]:
    """Train on some batches from the first weights, at the rate of the run or a tenth of it: whichever learns more."""
    stage = bench.stage
    weights = stage.weights(initial=bool(bench.specimen.initial))
    first = mean_loss(stage, train, weights)
    initial = mean_loss(stage, held, weights)
    best: Arm | None = None
    for rate in RATES:
        trial = Trial(stage, train, bench.specimen.traces, Change(rate=rate), 1, first)
        arm = trial.run(UPDATES, bench.time.part(0.3 * bench.left_s))
        if best is None or not best.last <= arm.last:
            best = arm
        if best.last < 0.5 * first:
            break
    if best is None or not math.isfinite(best.last):
        raise Skip("the recorded batches could not be learned")
    found = [shuffled_loss(bench.stage, sample, best.weights) for sample in held]
    return {
        "train_first": first,
        "train_last": best.last,
        "updates": best.updates,
        "initial": initial,
        "true": mean_loss(stage, held, best.weights),
        "permuted": _mean([one[0] for one in found]),
        "std": _mean([one[1] for one in found]) / math.sqrt(len(held)),
    }
