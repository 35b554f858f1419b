"""The overfit experiment as the causes of the step size read it: which single change makes the batches learnable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.causes.loop_reading import made_at, parameters_owned, stepping
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Kind, SiteKind

ADAPTIVE = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "SparseAdam", "Adafactor")
NO_LEARNING = 0.8  # of the first loss: a run that ends above it has learned next to nothing of these batches
CLEAR = 0.5  # an arm that ends below this share of the first loss has clearly learned
CLEAR_BESIDE_RUIN = 0.8
WORSE = 1.05
LOWER = 0.95  # of another loss: clearly below it
KEEN_MOMENTUM = 0.97
FIRST_RATIOS = 3  # updates whose size tells the optimizers of a run apart
OUTSTANDING = 5.0  # times that of the others
WEIGHTS = 2  # dimensions from which on a parameter counts as a weight tensor


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    last: float  # inf when it diverged
    updates: int
    diverged: bool
    swings: float


@dataclass(frozen=True, slots=True)
class Overfit:
    """What the experiment told, and what follows from it. Losses that are not finite are infinite here."""

    fact: dict[str, Any]
    first: float
    final: float
    own: Arm
    arms: dict[str, Arm]

    @property
    def failed(self) -> bool:
        """The run itself did not learn the batches it was trained on."""
        return not self.final < NO_LEARNING * self.first

    @property
    def clear(self) -> float:
        """Below which share of the first loss an arm has clearly learned. Where the run and its own settings in the
        experiment both end above the first loss, anything well below it tells."""
        worse = not self.final < WORSE * self.first and (self.own.diverged or not self.own.last < WORSE * self.first)
        return CLEAR_BESIDE_RUIN if worse else CLEAR

    def share(self, value: float, arm: Arm) -> float:
        """How much of what an arm gained a loss stands for: 1 = as much, 0 = nothing."""
        return float(np.clip((self.first - value) / max(self.first - arm.last, 1e-12), -1.0, 2.0))

    def learned(self, name: str) -> Arm | None:
        """An arm that clearly learned in the time that was given, where the run did not come half as far."""
        arm = self.arms.get(name)
        if arm is None or arm.diverged or not arm.last < self.clear * self.first:
            return None
        return arm if self.share(self.final, arm) < 0.5 else None

    def cures(self, name: str) -> Arm | None:
        """An arm that learns what the run failed at, and fails at again with its own settings."""
        arm = self.learned(name)
        if arm is None:
            return None
        again = self.own.diverged or self.share(self.own.last, arm) < 0.5
        shaky = self.failed and self.own.swings > 0.35 and self._far_below_own(arm)
        return arm if again or shaky else None

    def steadies(self, name: str) -> Arm | None:
        """An arm that learns far more than the run's own settings, where the run ended with nothing."""
        arm = self.learned(name)
        if arm is None or not self.failed:
            return None
        return arm if self.own.diverged or self._far_below_own(arm) else None

    def recovers_better(self, name: str) -> Arm | None:
        """An arm that learns at once what the run's own settings blow up on, and ends lower than a longer run did."""
        arm = self.arms.get(name)
        if arm is None or arm.diverged or not self.own.diverged or arm.updates > self.run_updates:
            return None
        return arm if arm.last < min(CLEAR * self.first, LOWER * self.final) else None

    def _far_below_own(self, arm: Arm) -> bool:
        return self.own.last > 0 and arm.last < 0.3 * min(self.own.last, self.first)

    @property
    def run_updates(self) -> int:
        return int(self.fact.get("run_updates") or 0)

    @property
    def optimizer(self) -> str:
        return str(self.fact["optimizer"])

    @property
    def momentum(self) -> float:
        return float(self.fact.get("momentum") or 0.0)

    @property
    def lr(self) -> float | None:
        lr: float | None = self.fact.get("lr")
        return lr


def overfit_of(evidence: Evidence) -> Overfit | None:
    """The experiment, when it began where the run began and its loss is one that has a floor."""
    return evidence.once("overfit", lambda: _read(evidence))


def why_no_overfit(evidence: Evidence) -> str:
    if evidence.probe("overfit") is not None:
        return "the experiment did not begin where the run did"
    return evidence.why_no_probe("overfit")


def _read(evidence: Evidence) -> Overfit | None:
    fact = evidence.probe("overfit")
    if fact is None or not fact["from_initial"]:
        return None
    first = fact.get("run_first_loss")
    arms = {name: _arm(name, arm) for name, arm in fact["arms"].items()}
    lows = [arm["min"] for arm in fact["arms"].values() if arm["min"] is not None]
    final = fact.get("final_loss")
    if first is None or first <= 0 or (final is not None and any(low < -0.05 * first for low in lows)):
        return None  # a loss that can fall for ever says nothing about settings, unless the run ended in NaN
    return Overfit(fact, first, np.inf if final is None else final, arms.pop("own"), arms)


def _arm(name: str, arm: dict[str, Any]) -> Arm:
    last = np.inf if arm["last"] is None else arm["last"]
    return Arm(name, last, arm["updates"], bool(arm["diverged"]), arm["swings"])


def numbers(probe: Overfit, *arms: Arm) -> dict[str, float | str]:
    """The losses that convinced, for the evidence of a finding."""
    found: dict[str, float | str] = {
        "loss_at_start": probe.first,
        "loss_after_run": _shown(probe.final),
        "probe_updates": int(probe.own.updates),
        "probe_loss_own_settings": _shown(probe.own.last),
    }
    for arm in arms:
        found[f"probe_loss_{arm.name}"] = _shown(arm.last)
    return found


def _shown(value: float) -> float | str:
    return float(value) if np.isfinite(value) else "not finite"


@dataclass(frozen=True, slots=True)
class Blamed:
    """The optimizer whose rate is at fault."""

    site: int
    name: str
    lr: float | None


def blamed(evidence: Evidence, *, low: bool = False) -> Blamed | None:
    """Of several optimizers the one whose first updates are far larger (or smaller) beside their weights than those of
    all others; None where there is only one, or none stands out: the experiment changes all rates together."""
    owned, ratios = parameters_owned(evidence), update_ratios(evidence)
    usual: dict[int, float] = {}
    for site in stepping(evidence):
        first = [float(np.median(ratios[each][1][:FIRST_RATIOS])) for each in owned.get(site, ()) if each in ratios]
        if not first:
            return None
        usual[site] = float(np.median(first))
    order = sorted(usual, key=lambda site: usual[site], reverse=not low)
    if len(order) < 2:
        return None
    worst, next_one = usual[order[0]], usual[order[1]]
    if not (OUTSTANDING * worst < next_one if low else worst > OUTSTANDING * next_one):
        return None
    fact = next(fact for fact in evidence.facts("optimizer") if fact["site"] == order[0])
    rates = [group["lr"] for group in fact.get("groups") or () if group.get("lr") is not None]
    return Blamed(order[0], str(fact["name"]), float(rates[0]) if rates else None)


def optimizer_line(evidence: Evidence, one: Blamed | None = None) -> str | None:
    """Where the script makes the optimizer that is to blame, or else the one that updates most."""
    if one is not None and (line := made_at(evidence, one.site)) is not None:
        return line
    facts = evidence.facts("optimizer")
    found = [made_at(evidence, fact["site"]) for fact in facts]
    return next((line for line in found if line is not None), facts[0].get("source") if facts else None)


def update_ratios(evidence: Evidence) -> dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Of every weight tensor: steps, and the size of the update over the size of the weight before it."""
    return evidence.once("update ratios", lambda: _ratios(evidence))


def _ratios(evidence: Evidence) -> dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    moved, values = evidence.stats(Kind.UPDATE), evidence.stats(Kind.PARAMETER)
    turns = range(1, max(len(stepping(evidence)), 1) + 1)  # of several optimizers each moves its own, in turn
    found = {}
    for site in evidence.of_kind(SiteKind.PARAMETER):
        if site.shape is None or len(site.shape) < WEIGHTS:
            continue
        mine, own = moved["site"] == site.id, values["site"] == site.id
        size_after = dict(zip(values["step"][own].tolist(), values["l2"][own].tolist(), strict=True))
        steps, ratios = [], []
        for step, update in zip(moved["step"][mine].tolist(), moved["l2"][mine].tolist(), strict=True):
            before = next((size for back in turns if (size := size_after.get(step - back)) is not None), None)
            if before is not None and before > 0 and np.isfinite(update):
                steps.append(step)
                ratios.append(update / before)
        if steps:
            found[site.id] = (np.array(steps, np.int64), np.array(ratios, np.float64))
    return found


def typical_ratio(evidence: Evidence) -> float | None:
    """The median over weight tensors of their median ratio."""
    medians = [float(np.median(ratios)) for _, ratios in update_ratios(evidence).values()]
    return float(np.median(medians)) if medians else None
