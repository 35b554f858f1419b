"""What `neural profile` costs: times only, and times with memory, against a process that never imported neuraldbg.

python benchmarks/profile_cost.py [--pairs 200] [--starts 5] [--seconds S] [--programs gpt ...] [--full] [--write]
python benchmarks/profile_cost.py --calls      # time of one more call of a profiler by hand, after 10^2 and after 10^6

The method, the programs and the rule for what counts are those of benchmarks/overhead: processes that take turns in the
order A B C ... C B A, CPU time with all threads, a ratio of sums with its bootstrap interval of 95 %, a second bare
process as the control. `--full` adds timing every step, `--write` keeps the result in benchmarks/profile_cost.json.
What one step costs by itself: `benchmarks/step_cost.py --gpt --timed times|memory [--full]`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "overhead")]

BARS = {"times": 1.02, "memory": 1.05}  # on the GPT
TURNS = {"mlp": (20, 300), "resnet": (4, 28), "gpt": (4, 28)}  # steps of a turn, and before the first
KEPT = HERE / "profile_cost.json"
say = partial(print, flush=True)


def cost(chosen: argparse.Namespace) -> None:
    import page
    from arms import BARE, CONTROL, Arm
    from pairs import Much, compare

    def arm(name: str, *options: str) -> Arm:
        return Arm(name, "times of layers and phases", options, command=("profile",))

    arms = [arm("times"), arm("memory", "--memory")]
    arms += [arm("times of every step", "--budget", "full")] if chosen.full else []
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for program in chosen.programs:
        much = Much(chosen.pairs, chosen.starts, chosen.seconds)
        outcome = compare(program, [BARE, *arms, CONTROL], much, turn=TURNS[program], say=say)
        say(f"{program}: a bare step takes {outcome.bare_ms:.2f} ms of CPU")
        for name, ratio in outcome.ratios.items():
            bar = f", bar {BARS[name]}" if program == "gpt" and name in BARS else ""
            say(f"  {name:20} {ratio}, {ratio.pairs} pairs{bar}{'' if outcome.counts(name) else '  (does not count)'}")
        told = {
            name: {"ratio": one.value, "low": one.low, "high": one.high, "pairs": one.pairs}
            | {"counts": outcome.counts(name), "bare_ms": outcome.bare_ms}
            for name, one in outcome.ratios.items()
        }
        kept |= {program: told, "machine": page.machine()}
    if chosen.write:
        KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def calls(rounds: int = 60) -> None:
    """One more call of a layer after 10^6 before it, over one after 10^2: both in turns in one process."""
    from pairs import ratio_of

    from neural.profiling import LayerProfiler

    def timed(profiler: LayerProfiler, many: int) -> float:
        start = time.process_time_ns()
        for _ in range(many):
            profiler.start_layer("fc")
            profiler.end_layer("fc")
        return (time.process_time_ns() - start) / many / 1e3

    old, few, many = LayerProfiler(), [], []
    timed(old, 10**6)
    for _ in range(rounds):
        fresh = LayerProfiler()
        timed(fresh, 100)
        few.append(timed(fresh, 1000))
        many.append(timed(old, 1000))
    say(f"after 100 calls: {sorted(few)[rounds // 2]:.2f} us a call; after 1,000,000: {sorted(many)[rounds // 2]:.2f}")
    say(f"ratio {ratio_of(many, few)}, {rounds} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--starts", type=int, default=5, help="of the processes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further pair is begun")
    parser.add_argument("--programs", nargs="*", default=["gpt"], choices=list(TURNS))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    calls() if chosen.calls else cost(chosen)


if __name__ == "__main__":
    main()
