"""Learning-rate schedules as code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuraldbg.dsl.settings import Schedule


@dataclass(frozen=True, slots=True)
class ScheduleCode:
    text: str
    per_step: bool = True  # stepped after every update; else after every epoch


def _number(schedule: Schedule, position: int, names: tuple[str, ...], default: float) -> float:
    value: Any = next((schedule.named[name] for name in names if name in schedule.named), None)
    if value is None and position < len(schedule.positional):
        value = schedule.positional[position]
    good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return value if good else default


def schedule_numbers(schedule: Schedule) -> tuple[float, ...]:
    """What a schedule is told besides its first learning rate, in the order of its arguments."""
    steps = _number(schedule, 0, ("decay_steps", "steps", "total_steps", "T_max"), 1000)
    if schedule.name == "StepDecay":
        return _step_decay(schedule)
    if schedule.name == "ExponentialDecay":
        return steps, _number(schedule, 1, ("decay_rate", "rate", "gamma"), 0.96)
    if schedule.name == "InverseTimeDecay":
        return steps, _number(schedule, 1, ("decay_rate", "rate"), 1.0)
    if schedule.name in ("PolynomialDecay", "LinearDecay"):
        power = _number(schedule, 2, ("power",), 1.0) if schedule.name == "PolynomialDecay" else 1.0
        return steps, _number(schedule, 1, ("end_learning_rate", "end"), 1e-4), power
    if schedule.name == "WarmupCosine":
        return steps, _number(schedule, 1, ("warmup_steps", "warmup"), 100)
    low = _number(schedule, 1, ("alpha",), 0.0)
    return (steps, low) if low else (steps,)


def schedule_code(schedule: Schedule, rate: float) -> ScheduleCode:
    """What multiplies the first learning rate, as a LambdaLR."""
    steps, *more = schedule_numbers(schedule)
    if schedule.name == "StepDecay":
        made = f"torch.optim.lr_scheduler.StepLR(optimizer, {int(more[0])}, gamma={steps:g})"
        return ScheduleCode(made, per_step=False)
    if schedule.name == "ExponentialDecay":
        return _made(f"{more[0]:g} ** (step / {steps:g})")
    if schedule.name == "InverseTimeDecay":
        return _made(f"1 / (1 + {more[0]:g} * step / {steps:g})")
    if schedule.name in ("PolynomialDecay", "LinearDecay"):
        end, power = more[0] / rate, more[1]
        exponent = "" if power == 1 else f" ** {power:g}"
        return _made(f"{end:g} + {1 - end:g} * (1 - min(step / {steps:g}, 1)){exponent}")
    cosine = f"(1 + math.cos(math.pi * min(step / {steps:g}, 1))) / 2"
    if schedule.name == "WarmupCosine":
        return _made(f"min((step + 1) / {more[0]:g}, 1) * {cosine}")
    return _made(f"{more[0]:g} + {1 - more[0]:g} * {cosine}" if more else cosine)


def _step_decay(schedule: Schedule) -> tuple[float, float]:
    """Of the numbers given, the factor lies below 1 and the epochs above."""
    given = [v for v in (*schedule.positional, *schedule.named.values()) if isinstance(v, int | float)]
    factor = next((v for v in given if 0 < v < 1), 0.5)
    return factor, next((int(v) for v in given if v >= 1), 10)


def _made(factor: str) -> ScheduleCode:
    return ScheduleCode(f"torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: {factor})")
