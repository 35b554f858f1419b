"""Arms in turn with bare steps of the same training, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from programs import Results, Size, Training, interval

GROUPS = 4


def in_turns(
    size: Size, results: Results, training: Training, arms: Mapping[str, Callable[[], float]], steps: int
) -> None:
    """Each of `arms` makes its steps and tells the milliseconds of one; `steps` bare ones come before and after. The
    control is bare over bare."""
    ratios: dict[str, list[float]] = {name: [] for name in (*arms, "control")}
    bare = training.timed(steps)
    for _ in range(GROUPS if size.device == "cuda" else 1):
        taken = {name: arm() for name, arm in arms.items()}
        again, third = training.timed(steps), training.timed(steps)
        for name, one in taken.items():
            ratios[name].append(one / ((bare + again) / 2))
        ratios["control"].append(third / again)
        bare = third
        results.add("bare ms", bare)
        for name, values in ratios.items():
            results.add(f"{name} / bare", interval(values))
