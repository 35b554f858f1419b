"""Where the memory of the host goes that watching adds on a CUDA machine: by moment, and by what is mapped.

python benchmarks/gpu/memory.py      run it twice: the first run of a machine compiles the kernels
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]


def private_mb() -> Counter[str]:
    """MB that are this process's alone, by file or kind of mapping."""
    found: Counter[str] = Counter()
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        parts = line.split()
        if "-" in parts[0] and not parts[0].endswith(":"):
            name = Path(parts[5]).name if len(parts) > 5 else "anonymous"
        elif line.startswith("Private_"):
            found[name] += int(parts[1]) / 1024
    return found


class Moments:
    def __init__(self) -> None:
        self._before = private_mb()

    def tell(self, what: str) -> None:
        now = private_mb()
        grown = now - self._before
        largest = ", ".join(f"{name} {size:.1f}" for name, size in grown.most_common(6) if size > 0.3)
        print(f"{what}: {sum(now.values()) - sum(self._before.values()):+.1f} MB ({largest})", flush=True)
        self._before = now


def main() -> None:
    import torch
    from programs import GPT2, Training, wait, watched

    training = Training(GPT2)
    training.run(8)
    wait(GPT2)
    moments = Moments()
    training.run(3)
    wait(GPT2)
    moments.tell("3 bare steps")
    start = private_mb()
    import triton  # noqa: F401

    moments.tell("import triton")
    with watched(0.01) as (capture, _):
        moments.tell("attached")
        for steps in (1, 1, 3, 15, 5, 5):
            training.run(steps)
            wait(GPT2)
            moments.tell(f"{capture.core.recorder.step} steps")
    moments.tell("closed")
    print(f"in all: {sum(private_mb().values()) - sum(start.values()):+.1f} MB, torch {torch.__version__}")


if __name__ == "__main__":
    main()
