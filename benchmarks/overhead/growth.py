"""How the cost grows: with layers, with steps, and in memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from arms import BARE, OURS, Trainer

LAYERS = (50, 100, 200, 500, 1000, 2000)
FULL = next(arm for arm in OURS if arm.name == "full")
DEFAULT = next(arm for arm in OURS if arm.name == "default")
Points = list[list[float]]


def by_layers(layers: tuple[int, ...], *, rounds: int, say: Callable[[str], None]) -> Points:
    """[layers, microseconds of CPU that watching in full adds to a step]: bare and watched in turns."""
    found: Points = []
    for count in layers:
        with ExitStack() as stack:
            bare, full = (stack.enter_context(Trainer(arm, f"mlp:{count}")) for arm in (BARE, FULL))
            steps = max(4, 2000 // count)
            bare.steps(20)
            full.steps(300)  # until evidence is gathered as rarely as it will be
            extra = []
            for _ in range(rounds):
                first, ours, more, last = bare.steps(steps), full.steps(steps), full.steps(steps), bare.steps(steps)
                extra.append((ours + more - first - last) / (2 * steps) / 1e3)
        extra.sort()
        found.append([count, extra[len(extra) // 2]])
        say(f"{count} layers: {found[-1][1]:.0f} us a step, {found[-1][1] / count:.2f} us a layer")
    return found


def by_steps(most: int, *, say: Callable[[str], None]) -> Points:
    """[steps made, CPU time of a watched step over that of a bare one made at the same time], default budget."""
    found: Points = []
    with ExitStack() as stack:
        bare, ours = (stack.enter_context(Trainer(arm, "mlp:2")) for arm in (BARE, DEFAULT))
        made, at = 0, 100
        while at <= most:
            ours.steps(at - made)
            made, window, times = at, max(200, at // 20), [0, 0]
            for number in range(8):
                order = ((0, bare), (1, ours)) if number % 2 else ((1, ours), (0, bare))
                for which, trainer in order:
                    times[which] += trainer.steps(window // 8)
            made += window // 8 * 8
            found.append([at, times[1] / times[0], ours.unique_bytes() / 2**20])
            say(f"after {at:,} steps: {found[-1][1]:.3f}, {found[-1][2]:.0f} MB")
            at *= 10
    return found


def memory(*, steps: int, starts: int, say: Callable[[str], None]) -> dict[str, float]:
    """Megabytes of its own (USS) that a process has more under the default budget, at the size of GPT-2: the median
    between steps, and the peak. Medians over `starts`: the allocator alone makes bare ones differ by 200 MB."""
    between: dict[str, list[float]] = {"bare": [], "default": []}
    peaks: dict[str, list[float]] = {"bare": [], "default": []}
    for _ in range(starts):
        for arm in (BARE, DEFAULT):
            with Trainer(arm, "gpt2") as trainer:
                own = []
                for _ in range(steps):
                    trainer.steps(1)
                    own.append(trainer.unique_bytes() / 2**20)
                between[arm.name].append(median(own))
                peaks[arm.name].append(trainer.peak_kb / 2**10)
    more = [median(found["default"]) - median(found["bare"]) for found in (between, peaks)]
    say(f"memory at GPT-2 size: {more[0]:.0f} MB of its own more between steps, {more[1]:.0f} MB peak")
    say(f"  between steps {_listed(between)}; peaks {_listed(peaks)}")
    return {"uss_mb": more[0], "peak_mb": more[1]}


def _listed(found: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {' '.join(f'{each:.0f}' for each in sorted(values))}" for name, values in found.items())
