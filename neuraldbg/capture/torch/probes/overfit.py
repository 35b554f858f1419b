"""Can the recorded batches be learned: with the run's own settings, and with one of them changed?"""

from __future__ import annotations

import math
from typing import Any

from neuraldbg.capture.torch.probes.bench import Bench, Fact, Skip, finite, inputs_of, rms
from neuraldbg.capture.torch.probes.sample import OptimizerTrace, Sample, Samples
from neuraldbg.capture.torch.probes.stage import Stage, as_recorded, dropout_of
from neuraldbg.capture.torch.probes.trial import Arm, Change, Trial, mean_loss, shuffled_loss

MOST_UPDATES = 300
FEWEST_UPDATES = 20
WARM_UPDATES = 200  # what a second moment takes to settle
VISITS = 12  # of each batch that an arm should have time for; else fewer batches are used
MOST_SECONDS = 5.0  # for all experiments, where a run has failed
FOR_ARMS = 0.8  # of the time that is left; the rest is for the experiment after this one
OF_ONE_ARM = 0.2
SMALL_BATCH = 4  # samples
FASTER = ("lr_x10", "lr_x100", "lr_x10000")
FASTEST = "lr_x1000000"
LARGE = 0.3  # share of frozen weights from which it is asked what they cost
MOSTLY_DROPPED = 0.8
NOISY = 0.5  # difference of two passes over the same batch
LEARNED = 0.1  # of the first loss: a run that came below it has nothing to ask
STILL = 1e-3  # of the weights in the first update: a rate that moves them by more is not too low
AT_REST = 1e-6  # below it ten thousand times the rate may still be too low
HELD_OUT = 2  # batches
ON_ITS_WAY = (0.4, 0.95)  # of the first loss: what a run that was stopped too early ends at


def trainable(samples: Samples, traces: list[OptimizerTrace]) -> None:
    """Raises Skip where a short training on recorded batches would not be the training of the run."""
    if not traces:
        raise Skip("no optimizer of torch moves the model")
    for trace in traces:
        if not trace.kind.__module__.startswith("torch.optim"):
            raise Skip(f"{trace.kind.__name__} is no optimizer of torch")
        if trace.kind.__name__ == "LBFGS":
            raise Skip("LBFGS needs the script's own closure")
    usual = samples.loss_lines.most_common(1)[0][1]
    if usual < 0.95 * sum(samples.loss_lines.values()):
        raise Skip("the script trains with several losses in turn")


def overfit(bench: Bench) -> Fact:
    own = bench.specimen
    trainable(bench.samples, own.traces)
    experiment = _Experiment(bench)
    if own.samples[0].tape.kinds == [] and not own.samples[0].tape.in_model and math.isfinite(experiment.final):
        raise Skip("the loss is not of a kind that has a known floor")
    arms = experiment.run()
    thawed = experiment.thawed
    trace = own.traces[0]
    options = trace.options[0]
    return {
        **bench.about(own.samples[0], "initial" if own.initial else "final"),
        "batches": len(experiment.samples),
        "rows": min(_rows(sample) for sample in own.samples),
        "parameters": parameter_count(bench.stage),
        "labels": experiment.labels,
        "updates": arms["own"].updates,
        "run_updates": trace.updates,
        "optimizer": trace.kind.__name__,
        "from_initial": bool(own.initial) and own.from_start,
        "lr": finite(float(trace.rates[0][0])) if trace.rates and trace.rates[0] else None,
        "momentum": _momentum(options),
        "weight_decay": finite(float(options.get("weight_decay") or 0.0)),
        "clip": None if trace.clip is None else [trace.clip[0], finite(trace.clip[1])],
        "backwards": experiment.backwards,
        "loss_kinds": sorted(set(own.samples[0].tape.kinds)),
        "in_model": own.samples[0].tape.in_model,
        "run_first_loss": finite(experiment.first),
        "final_loss": finite(experiment.final),
        "final_shuffled": finite(experiment.shuffled()),
        "floor": finite(min((arm.lowest for arm in arms.values() if math.isfinite(arm.lowest)), default=math.nan)),
        "grad_norm": finite(_median(arms["own"].norms[:8])),
        "unfrozen": None if thawed is None else thawed.as_fact(),
        "arms": {name: arm.as_fact() for name, arm in arms.items()},
        "continued": experiment.continued,
    }


def _momentum(options: dict[str, Any]) -> float | None:
    if "betas" in options:
        return finite(float(options["betas"][0]))
    return finite(float(options["momentum"])) if "momentum" in options else None


def _median(values: list[float]) -> float:
    known = sorted(value for value in values if math.isfinite(value))
    return known[len(known) // 2] if known else math.nan


def _faster(*, hardly_a_move: bool, at_rest: bool) -> tuple[str, ...]:
    """Higher rates, in the order in which they are tried: the far higher ones first where nothing happened at all."""
    first, *rest = reversed(FASTER) if hardly_a_move else FASTER
    return (first, FASTEST, *rest) if at_rest else (first, *rest)


def parameter_count(stage: Stage) -> int:
    return sum(parameter.numel() for parameter in stage.parameters() if parameter.requires_grad)


def _rows(sample: Sample) -> int:
    """Samples in a batch, as its labels or its first input tell."""
    known = [*sample.tape.targets.values(), *inputs_of(sample.tape.passes[sample.tape.used_passes[0]]).values()]
    return next((len(tensor) for tensor in known if tensor.dim() > 0), 0)


class _Experiment:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.stage = bench.stage
        self.samples = bench.specimen.samples
        self.traces = bench.specimen.traces
        self.backwards = bench.samples.per_update.most_common(1)[0][0] if bench.samples.per_update else 1
        self.seconds = 0.0  # of one update
        self.reserve_s = 0.0  # for the experiment after this one
        self.continued: Fact | None = None
        self.thawed: Arm | None = None
        self._measure()

    def _measure(self) -> None:
        """The loss of the first and of the final weights on the batches that are used."""
        initial = self.stage.weights(initial=bool(self.bench.specimen.initial))
        self.first = mean_loss(self.stage, self.samples, initial)
        self.final = mean_loss(self.stage, self.samples, self.stage.weights(initial=False))

    def run(self) -> dict[str, Arm]:
        """The run's own settings first; other arms only when there is something to ask and time to answer."""
        if self._failed():
            self.bench.time.raise_to(MOST_SECONDS)
        slice_s = max(self.bench.left_s, 0.0) * FOR_ARMS
        self.reserve_s = (1 / FOR_ARMS - 1) * slice_s
        self._arm(Change(), 2, slice_s)  # the first updates of a process are slow
        self.seconds = max(self._arm(Change(), 3, slice_s).seconds / 3, 1e-5)
        most = max(FEWEST_UPDATES, min(MOST_UPDATES, self.traces[0].updates))
        updates = int(min(most, max(6, OF_ONE_ARM * slice_s / self.seconds)))
        self._choose(max(2, updates // VISITS))
        arms = {"own": self._arm(Change(), updates, 0.3 * slice_s)}
        if self._collapsed_later(arms["own"]):
            longer = int(min(most, 3 * updates))
            arms["own"] = self._arm(Change(), longer, 0.6 * slice_s)
            updates = longer
        if not arms["own"].diverged:  # a busy machine gives less time than was thought: the same for every arm
            updates = arms["own"].updates
        self.continued = self._continue(arms["own"], OF_ONE_ARM * slice_s)
        if self._cramped(arms["own"]):
            arms["one_batch"] = self._one_batch(3 * updates, 0.3 * slice_s)
        if self._frozen_part() and self._open():
            self.thawed = self._arm(Change(thawed=True), arms["own"].updates, self.bench.left_s)
        norms = arms["own"].norms[:8]
        for name in self._questions(arms["own"]):
            if self.bench.left_s < self.reserve_s:
                break
            if not self._answered(name, arms):
                count = self._warm_updates(updates) if name == "warmup" else updates
                count = min(most, 3 * updates) if name == "no_dropout" else count  # never more than the run had
                change = self._change(name, count, _median(norms) if norms else 1.0)
                arms[name] = self._arm(change, count, self.bench.left_s)
        return arms

    def _frozen_part(self) -> bool:
        frozen = [parameter.numel() for parameter in self.stage.parameters() if not parameter.requires_grad]
        return sum(frozen) > LARGE * (sum(frozen) + parameter_count(self.stage))

    def _open(self) -> bool:
        """Whether the run left something to be learnt of these batches."""
        return not (math.isfinite(self.final) and self.final < LEARNED * self.first)

    def _choose(self, count: int) -> None:
        """Fewer batches where there is only time for a few updates: better a few learned than many touched."""
        if count < len(self.samples):
            last = len(self.samples) - 1
            self.samples = [self.samples[round(place * last / (count - 1))] for place in range(count)]
            self._measure()

    def _warm_updates(self, updates: int) -> int:
        """As many as a second moment takes to settle, and as there is time for: the full rate must be reached."""
        time = int((self.bench.left_s - self.reserve_s) / self.seconds)
        return max(FEWEST_UPDATES, min(max(updates, WARM_UPDATES), time))

    def _continue(self, arm: Arm, seconds: float) -> Fact | None:
        """The run taken further from its final weights, and whether batches that it is not shown gain by that."""
        own, low, high = self.bench.specimen, *ON_ITS_WAY
        samples, updates = own.samples, int(min(self.traces[0].updates, MOST_UPDATES, seconds / self.seconds))
        if not own.initial or arm.diverged or arm.swings > 0.3 or not low * self.first < self.final < high * self.first:
            return None
        if len(samples) < 2 * HELD_OUT or updates < FEWEST_UPDATES:
            return None
        held, shown = samples[:HELD_OUT], samples[HELD_OUT:]
        weights = self.stage.weights(initial=False)
        before = mean_loss(self.stage, held, weights), mean_loss(self.stage, shown, weights)
        last_rate = max(len(trace.rates) for trace in self.traces)
        trial = Trial(self.stage, shown, self.traces, Change(), self.backwards, before[1], last_rate)
        further = trial.run(updates, self.bench.time.part(seconds), start=weights)
        return {
            "updates": further.updates,
            "held_first": finite(before[0]),
            "held_last": finite(mean_loss(self.stage, held, further.weights)),
            "shown_first": finite(before[1]),
            "shown_last": finite(further.last),
        }

    def _cramped(self, own: Arm) -> bool:
        """Fewer parameters than a batch has labels, and little learned: is there room for even one batch?"""
        return not own.diverged and own.last > 0.5 * self.first and parameter_count(self.stage) < 2 * self.labels

    def _one_batch(self, updates: int, seconds: float) -> Arm:
        only = self.samples[:1]
        first = mean_loss(self.stage, only, self.stage.weights(initial=bool(self.bench.specimen.initial)))
        trial = Trial(self.stage, only, self.traces, Change(), self.backwards, first)
        return trial.run(updates, self.bench.time.part(seconds))

    def shuffled(self) -> float:
        """The loss of the final weights when labels are dealt out anew: what knowing nothing of the input costs."""
        weights = self.stage.weights(initial=False)
        known = [one for one in self.samples if len(one.tape.targets) == 1 and _rows(one) > 3]
        losses = [shuffled_loss(self.stage, one, weights)[0] for one in known]
        return sum(losses) / len(losses) if losses else math.nan

    @property
    def labels(self) -> int:
        """Numbers that the first batch asks the model for."""
        return sum(target.numel() for target in self.samples[0].tape.targets.values())

    def _failed(self) -> bool:
        return not self.final < 0.7 * self.first

    def _mostly_dropped(self) -> bool:
        """Whether a module, or what two passes over one batch have in common, says that dropout leaves little."""
        modules = [module for root in self.bench.specimen.roots for module in root.modules()]
        if any((dropout_of(module) or 0.0) >= MOSTLY_DROPPED for module in modules):
            return True
        as_recorded(self.samples[-1])
        weights = self.stage.weights(initial=False)
        one, two = (self.bench.outputs(self.samples[-1], dict(weights), seed=seed)[:1] for seed in (1, 2))
        return any(a.dtype.is_floating_point and rms(a - b) > NOISY * rms(b) for a, b in zip(one, two, strict=True))

    def _collapsed_later(self, own: Arm) -> bool:
        """The run lost what its settings can learn: a longer look may show how."""
        return self._failed() and own.last < 0.5 * self.first

    def _answered(self, name: str, arms: dict[str, Arm]) -> bool:
        """Whether what other arms have shown makes one superfluous."""
        cured = {other for other, arm in arms.items() if arm.last < LEARNED * self.first}
        if name == "lr_x0.01" and "lr_x0.1" in arms and arms["own"].last < arms["lr_x0.1"].last:
            return True  # smaller is worse
        if name in ("lr_x0.01", "clipped"):
            return bool(cured)
        if name == "warmup":  # says something only where a smaller rate learns
            return not any(arms[other].last < 0.5 * self.first for other in ("lr_x0.1", "lr_x0.01") if other in arms)
        if name in (*FASTER, FASTEST):
            return any(other in (*FASTER, FASTEST) and arm.last < 0.8 * self.first for other, arm in arms.items())
        return False

    def _arm(self, change: Change, updates: int, seconds: float) -> Arm:
        trial = Trial(self.stage, self.samples, self.traces, change, self.backwards, self.first)
        return trial.run(updates, self.bench.time.part(seconds))

    def _questions(self, own: Arm) -> list[str]:
        """Which changes are worth a try, the likeliest to help first."""
        if math.isfinite(self.final) and self.final < LEARNED * self.first and not own.diverged:
            return []
        options = self.traces[0].options[0]
        failed = own.diverged or not own.last < 0.7 * self.first
        rose = own.diverged or own.swings > 0.3 or max(own.losses, default=0.0) > 1.5 * max(own.losses[:1], default=0.0)
        resting = not own.moved > STILL  # then swings are those of the batches
        slow = not own.diverged and (resting or own.swings < 0.4) and own.last > 0.5 * self.first
        faster = _faster(hardly_a_move=own.last > 0.995 * self.first, at_rest=own.moved < AT_REST)
        still = slow and resting
        adaptive = "betas" in options or "alpha" in options
        clipped = any(trace.clip is not None for trace in self.traces)
        small = min(_rows(sample) for sample in self.samples) <= SMALL_BATCH
        asked = [
            ("no_dropout", self._open() and self._mostly_dropped()),
            ("scaled", self.backwards > 1),
            ("unclipped", clipped),
            ("weight_decay_0", bool(options.get("weight_decay"))),
            ("momentum_0.9", (_momentum(options) or 0.0) > 0.9),
            *((name, still) for name in (() if rose else faster)),
            ("lr_x0.1", not resting and (failed or self._failed() or own.swings > 0.3)),
            ("warmup", failed and adaptive),
            ("lr_x0.01", failed and (rose or own.moved > STILL)),
            ("clipped", failed and rose and not clipped),
            *((name, still) for name in (faster if rose else ())),
            ("lr_x10", slow and self._cramped(own)),
            ("joined", small and len(self.samples) > 2),
        ]
        return list(dict.fromkeys(name for name, wanted in asked if wanted))

    def _change(self, name: str, updates: int, clip: float) -> Change:
        changes = {
            "lr_x0.1": Change(rate=0.1),
            "lr_x0.01": Change(rate=0.01),
            "lr_x10": Change(rate=10.0),
            "lr_x100": Change(rate=100.0),
            "lr_x10000": Change(rate=10_000.0),
            "lr_x1000000": Change(rate=1e6),
            "momentum_0.9": Change(momentum=0.9),
            "weight_decay_0": Change(weight_decay=0.0),
            "unclipped": Change(unclipped=True),
            "clipped": Change(clip=max(min(clip, 1.0), 1e-6) if math.isfinite(clip) else 1.0),
            "scaled": Change(loss_factor=1.0 / self.backwards),
            "warmup": Change(warm_up=max(5, updates // 2)),
            "joined": Change(joined=len(self.samples)),
            "no_dropout": Change(quiet=True),
        }
        return changes[name]
