"""How the cost grows: with layers, with steps, and in memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

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


def memory(*, steps: int, say: Callable[[str], None]) -> dict[str, float]:
    """Megabytes of its own (USS) that a process has more under the default budget, at the size of GPT-2: the largest
    that was seen between steps, and the difference of the peaks."""
    with ExitStack() as stack:
        bare, ours = (stack.enter_context(Trainer(arm, "gpt2")) for arm in (BARE, DEFAULT))
        own = dict.fromkeys((bare, ours), 0)
        for _ in range(steps):
            for trainer in own:
                trainer.steps(1)
                own[trainer] = max(own[trainer], trainer.unique_bytes())
        found = {"uss_mb": (own[ours] - own[bare]) / 2**20, "peak_mb": (ours.peak_kb - bare.peak_kb) / 2**10}
    say(f"memory at GPT-2 size: {found['uss_mb']:.0f} MB of its own more between steps, {found['peak_mb']:.0f} MB peak")
    return found
