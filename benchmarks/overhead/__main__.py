"""What watching costs, on this machine, beside other tools that capture less.

python benchmarks/overhead [--short] [--pairs 200] [--starts 40] [--seconds S] [--programs mlp resnet gpt] [--first]
                           [--at-once N] [--arms default full off ...] [--peers PYTHON] [--old PYTHON] [--growth]
                           [--memory] [--write]

Each arm is a process of its own that takes its steps on command; bare is one that never imported neuraldbg. They take
turns in the order A B C ... C B A, which makes one pair of each with the bare one. The figure is the CPU time of the
process with all its threads over that of the bare one: a ratio of sums, with the interval of 95 % that a bootstrap over
the pairs gives. Two processes of one kind differ by some percent for as long as they live: all of them are started
anew several times, and the bootstrap draws among the starts first. `control` is a second bare process: a figure counts
only where control covers 1.00 and both intervals are at most 1 % to each side. The first 20 updates, which are watched
in full, come before the pairs; --first compares just those instead, each start a new one. --at-once N has so many
starts beside each other, each on cores of its own: for machines with many.

--peers names the python of a venv with wandb, tensorboard and transformers, --old that of one with neuraldbg 1.3.2.
--write keeps the results (benchmarks/overhead/results.json) and makes docs/overhead.md and its plots from them.
"""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import growth
import page
from arms import BARE, CONTROL, COVERS, OURS, peers
from pairs import Much, Outcome, compare

# steps of a turn, which takes a second or more: threads that work by the clock (the trace is written once a second)
# find that all the others' turns have passed whenever theirs begins: in shorter ones they take more than their share
TURNS = {"mlp": 200, "resnet": 6, "gpt": 5}
FIRST = 20  # updates that are watched in full
SHORT_PAIRS = 12

say = partial(print, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_PAIRS} pairs of the MLP: whether it still works")
    parser.add_argument("--pairs", type=_count, default=200)
    parser.add_argument("--starts", type=_count, default=40, help="of the processes")
    parser.add_argument("--first", action="store_true", help=f"the first {FIRST} updates, not those after them")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further pair is begun")
    parser.add_argument("--at-once", type=_count, default=1, help="starts, each on its own part of the cores")
    parser.add_argument("--programs", nargs="*", default=list(TURNS), choices=list(TURNS))
    known = [*(arm.name for arm in OURS), *COVERS]
    parser.add_argument("--arms", nargs="*", choices=known, help="by default ours and the peers that are there")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--old", metavar="PYTHON")
    parser.add_argument("--growth", action="store_true", help="with layers and steps")
    parser.add_argument("--most-steps", type=int, default=1_000_000)
    parser.add_argument("--memory", action="store_true", help="at the size of GPT-2")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    if chosen.short:
        chosen.pairs, chosen.programs, chosen.starts = SHORT_PAIRS, ["mlp"], 1
    found: dict[str, object] = {}
    if chosen.growth:
        found["layers"] = growth.by_layers(growth.LAYERS, rounds=9, say=say)
        found["steps"] = growth.by_steps(chosen.most_steps, say=say)
    if chosen.memory:
        found["memory"] = growth.memory(steps=25, starts=5, say=say)
    arms = [*OURS, *peers(chosen.peers, chosen.old)]
    if chosen.arms is not None:
        arms = [arm for arm in arms if arm.name in chosen.arms]
    for program in chosen.programs:
        compared = [BARE, *arms, CONTROL]
        say(f"{program}: {', '.join(arm.name for arm in compared)} are started; a line comes after each start")
        starts = min(chosen.starts, chosen.pairs)
        much, turn = Much(chosen.pairs, starts, chosen.seconds, chosen.at_once), (TURNS[program], FIRST)
        if chosen.first:
            much, turn = Much(starts, starts, chosen.seconds, chosen.at_once), (FIRST // 2, 0)  # one pair of each
        outcome = compare(program, compared, much, turn=turn, say=say)
        show(outcome)
        page.keep(outcome, found, first=chosen.first) if chosen.write else None
    if chosen.write:
        page.keep(None, found)
        page.write()


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def show(outcome: Outcome) -> None:
    say(f"{outcome.program}: a bare step takes {outcome.bare_ms:.2f} ms of CPU")
    for name, ratio in outcome.ratios.items():
        viewer = outcome.viewer_share.get(name)
        beside = "" if viewer is None else f", viewer {viewer:.1%} of a core"
        say(f"  {name:20} {ratio}{beside}{'' if outcome.counts(name) else '  (does not count)'}")


if __name__ == "__main__":
    main()
