"""What a debug session with 100 hooks costs a training: the method of benchmarks/overhead, with its programs.

python benchmarks/hooks_cost.py [--program gpt] [--pairs 40] [--seconds 400] [--arms toolkit_hooks]

Arms, each beside the bare program in the same turns: `toolkit` (a session attached to the model, no hook),
`toolkit_hooks_elsewhere` (100 hooks whose patterns fit no layer), `toolkit_hooks` (100 hooks, one for each layer, which
inspects its output at every forward: moments, norms, counts, histogram). `control` is a second bare process.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "overhead"))

from arms import BARE, CONTROL, Arm
from pairs import Much, compare

TURNS = {"mlp": (20, 300), "resnet": (4, 24), "gpt": (4, 24)}
ARMS = [
    Arm("toolkit", "a debug session", peer="toolkit"),
    Arm("toolkit_hooks_elsewhere", "100 hooks that fit no layer", peer="toolkit_hooks_elsewhere"),
    Arm("toolkit_hooks", "100 hooks", peer="toolkit_hooks"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="gpt", choices=sorted(TURNS))
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--starts", type=int, default=1, help="how often all arms are started anew")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--arms", nargs="*", default=[arm.name for arm in ARMS])
    chosen = parser.parse_args()
    say = partial(print, flush=True)
    arms = [arm for arm in ARMS if arm.name in chosen.arms]
    much = Much(chosen.pairs, chosen.starts, chosen.seconds)
    outcome = compare(chosen.program, [BARE, *arms, CONTROL], much, turn=TURNS[chosen.program], say=say)
    say(f"{outcome.program}: a bare step takes {outcome.bare_ms:.2f} ms of CPU")
    for name, ratio in outcome.ratios.items():
        say(f"  {name:26} {ratio}{'' if outcome.counts(name) else '  (does not count)'}")


if __name__ == "__main__":
    main()
