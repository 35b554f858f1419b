"""Arms in turn with bare steps of the same training, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from programs import IN_FULL, Results, Size, Training, interval, steps

GROUPS = 4
STRETCH = 12  # steps that are timed


def bare_ms(size: Size, training: Training) -> float:
    """A device that has rested is faster for a second, by up to two percent: every stretch that is timed, bare or
    watched, is as long as the others, and as many steps come before it."""
    training.run(steps(size, IN_FULL))
    return training.timed(steps(size, STRETCH))


def in_turns(size: Size, results: Results, training: Training, arms: Mapping[str, Callable[[], float]]) -> None:
    """Each of `arms` makes its steps and tells the milliseconds of one; bare ones come before and after. The control is
    bare over bare."""
    ratios: dict[str, list[float]] = {name: [] for name in (*arms, "control")}
    bare = bare_ms(size, training)
    for _ in range(GROUPS if size.device == "cuda" else 1):
        taken = {name: arm() for name, arm in arms.items()}
        again, third = bare_ms(size, training), bare_ms(size, training)
        for name, one in taken.items():
            ratios[name].append(one / ((bare + again) / 2))
        ratios["control"].append(third / again)
        bare = third
        results.add("bare ms", bare)
        for name, values in ratios.items():
            results.add(f"{name} / bare", interval(values))
