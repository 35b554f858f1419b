"""Can the batches that a run was shown be learned: with its own settings, and at another rate? The same question, and
the same answer in the trace, as for PyTorch (`capture/torch/probes/overfit.py`)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from neuraldbg.capture.keras.models import count_of, loss_name
from neuraldbg.capture.keras.probes.specimen import Skip, Specimen
from neuraldbg.capture.keras.probes.stage import Stage, stage_for

MOST_SECONDS = 5.0  # of updates; what is compiled before them takes its time once
OF_ONE_ARM = 0.2
MOST_UPDATES, FEWEST_UPDATES = 200, 20
BLOWN_UP = 1e3  # times the first loss
LEARNED = 0.1  # of the first loss
STILL = 1e-3  # of the weights in the first update: a rate that moves them by more is not too low
AT_REST = 1e-6
CURVE = 16
ADAPTIVE = ("Adam", "AdamW", "Adamax", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "Lion")
FASTER = {"lr_x10": 10.0, "lr_x100": 100.0, "lr_x10000": 1e4, "lr_x1000000": 1e6}
SLOWER = {"lr_x0.1": 0.1, "lr_x0.01": 0.01}


@dataclass(eq=False)
class Arm:
    first: float
    last: float = math.nan
    lowest: float = math.nan
    updates: int = 0
    diverged: bool = False
    swings: float = 0.0
    moved: float = math.nan  # size of the first update over that of the weights, in the median of weight tensors
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def as_fact(self) -> dict[str, Any]:
        stride = max(1, math.ceil(len(self.losses) / CURVE))
        curve = [float(np.mean(self.losses[at : at + stride])) for at in range(0, len(self.losses), stride)]
        return {
            "first": finite(self.first),
            "last": finite(self.last),
            "min": finite(self.lowest),
            "updates": self.updates,
            "diverged": self.diverged,
            "swings": self.swings,
            "curve": [finite(value) for value in curve],
        }


def finite(value: float) -> float | None:
    return value if math.isfinite(value) and abs(value) < 1e300 else None


def overfit(model: Any, specimen: Specimen, run_updates: int) -> dict[str, Any]:
    """The fields of the fact. `Skip` where the experiment could not be that of the run."""
    experiment = Experiment(model, specimen, run_updates)
    arms = experiment.run()
    options = model.optimizer.get_config()
    targets = keras.tree.flatten(specimen.batches[0][1])
    norms = [value for value in arms["own"].norms[:8] if math.isfinite(value)]
    return {
        "at_step": 0,
        "state": "initial",
        "batches": len(specimen.batches),
        "rows": min(len(keras.tree.flatten(batch[0])[0]) for batch in specimen.batches),
        "parameters": count_of(model.trainable_variables),
        "labels": sum(int(np.size(each)) for each in targets if each is not None),
        "updates": arms["own"].updates,
        "run_updates": run_updates,
        "optimizer": {"Nadam": "NAdam"}.get(type(model.optimizer).__name__, type(model.optimizer).__name__),
        "from_initial": True,
        "lr": finite(specimen.rate or math.nan),
        "momentum": options.get("beta_1", options.get("momentum")),
        "weight_decay": float(options.get("weight_decay") or 0.0),
        "clip": None,
        "backwards": 1,
        "loss_kinds": [loss_name(model)],
        "in_model": False,
        "run_first_loss": finite(experiment.first),
        "final_loss": finite(experiment.final),
        "final_shuffled": None,
        "floor": finite(min((arm.lowest for arm in arms.values() if math.isfinite(arm.lowest)), default=math.nan)),
        "grad_norm": sorted(norms)[len(norms) // 2] if norms else None,
        "unfrozen": None,
        "arms": {name: arm.as_fact() for name, arm in arms.items()},
        "continued": None,
    }


class Experiment:
    def __init__(self, model: Any, specimen: Specimen, run_updates: int) -> None:
        self.model, self.specimen = model, specimen
        self.stage: Stage = stage_for(model, specimen)
        self.rate = specimen.rate or 0.0
        self.first = self._mean_loss(specimen.trainable, specimen.fixed)
        now = [np.array(each.value) for each in model.trainable_variables]
        rest = [np.array(each.value) for each in model.non_trainable_variables]
        self.final = self._mean_loss(now, rest)
        if not math.isfinite(self.first):
            raise Skip("the loss is not finite from the beginning")
        self.most = max(FEWEST_UPDATES, min(MOST_UPDATES, run_updates))

    def _mean_loss(self, trainable: list[Any], fixed: list[Any]) -> float:
        self.stage.start(trainable, fixed)
        return self._mean()

    def _mean(self) -> float:
        return float(np.mean([self.stage.loss(batch) for batch in self.specimen.batches]))

    def run(self) -> dict[str, Arm]:
        """The run's own settings first; other rates while they could answer something and there is time."""
        self._arm(1.0, 2, math.inf)  # compiles
        began = _now()
        each = max(self._timed(3), 1e-5)
        updates = int(min(self.most, max(6, OF_ONE_ARM * MOST_SECONDS / each)))
        arms = {"own": self._arm(1.0, updates, MOST_SECONDS)}
        if not arms["own"].diverged:
            updates = arms["own"].updates
        for name in self._questions(arms["own"]):
            left = MOST_SECONDS - (_now() - began)
            if left <= 0:
                break
            if not self._answered(name, arms):
                factor = {**FASTER, **SLOWER}.get(name, 1.0)
                arms[name] = self._arm(factor, updates, left, warm=updates // 2 if name == "warmup" else 0)
        return arms

    def _timed(self, updates: int) -> float:
        began = _now()
        self._arm(1.0, updates, math.inf)
        return (_now() - began) / updates

    def _arm(self, factor: float, updates: int, seconds: float, *, warm: int = 0) -> Arm:
        arm, batches, until = Arm(self.first), self.specimen.batches, _now() + seconds
        self.stage.start(self.specimen.trainable, self.specimen.fixed)
        for update in range(updates):
            if warm or update == 0:
                self.stage.rate(self.rate * factor * (min(1.0, (update + 1) / warm) if warm else 1.0))
            loss, norm = self.stage.step(batches[update % len(batches)])
            arm.losses.append(loss)
            arm.norms.append(norm)
            if not math.isfinite(loss) or abs(loss) > BLOWN_UP * max(abs(self.first), 1e-3):
                arm.diverged = True
                break
            if update == 0:
                arm.moved = _moved(self.specimen.trainable, self.stage.weights())
            arm.updates += 1
            if _now() > until and update >= 3:
                break
        return self._summed_up(arm)

    def _summed_up(self, arm: Arm) -> Arm:
        window = len(self.specimen.batches)
        arm.last = math.nan if arm.diverged else self._mean()
        arm.diverged = arm.diverged or not math.isfinite(arm.last)
        starts = range(0, len(arm.losses) - window + 1, window)
        cycles = [float(np.mean(arm.losses[at : at + window])) for at in starts]
        arm.lowest = min((each for each in (*cycles, arm.last) if math.isfinite(each)), default=math.nan)
        pairs = list(zip(arm.losses, arm.losses[window:], strict=False))
        arm.swings = sum(later > before for before, later in pairs) / len(pairs) if pairs else 0.0
        return arm

    def _questions(self, own: Arm) -> list[str]:
        """Which rates are worth a try, the likeliest to help first."""
        if math.isfinite(self.final) and self.final < LEARNED * self.first and not own.diverged:
            return []
        resting = not own.moved > STILL
        faster = list(FASTER)[:3] if own.moved > AT_REST else list(FASTER)[::-1]
        still = resting and not own.diverged and own.last > 0.5 * self.first
        failed = own.diverged or not own.last < 0.7 * self.first
        adaptive = type(self.model.optimizer).__name__ in ADAPTIVE
        asked = [
            *((name, still) for name in faster),
            ("lr_x0.1", not resting),
            ("warmup", not resting and failed and adaptive),
            ("lr_x0.01", not resting and failed),
        ]
        return [name for name, wanted in asked if wanted]

    def _answered(self, name: str, arms: dict[str, Arm]) -> bool:
        """Whether what other arms have shown makes one superfluous."""
        if name == "lr_x0.01":
            cured = any(arm.last < LEARNED * self.first for arm in arms.values())
            return cured or ("lr_x0.1" in arms and arms["own"].last < arms["lr_x0.1"].last)
        if name == "warmup":
            return not any(arms[other].last < 0.5 * self.first for other in SLOWER if other in arms)
        return name in FASTER and any(other in FASTER and arms[other].last < 0.8 * self.first for other in arms)


def _now() -> float:
    """Seconds of this process' own work, but half of those on the clock at least: a busy machine gives less of them."""
    return max(time.process_time() - _STARTED[0], (time.monotonic() - _STARTED[1]) / 2)


_STARTED = time.process_time(), time.monotonic()


def _moved(before: list[Any], after: list[Any]) -> float:
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old.ndim > 1 and np.linalg.norm(old) > 0]
    shares = [float(np.linalg.norm(new - old) / np.linalg.norm(old)) for old, new in pairs]
    return float(np.median(shares)) if shares else math.nan
