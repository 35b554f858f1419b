"""What recording every step costs, part by part: python benchmarks/record_cost.py [gpt resnet mlp] [--steps 120]

CPU time of the training thread inside the recording, and of the thread that writes, over the CPU time of the rest:
where a machine is too busy for benchmarks/overhead (arm `record`), this still tells. What the hooks cost as such is not
in it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "overhead"))

from programs import program_of, step_of

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.capture.torch.recording.disk import record_to_disk
from neuraldbg.capture.torch.recording.spool import Spool


class Timed:
    """Sums the CPU time that its thread spends in a function."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start

        return call


def measure(name: str, steps: int, folder: Path) -> None:
    capture = TorchCapture(lambda: None, Options(budget=0.0))
    hooks, writing = Timed(), Timed()
    recording = record_to_disk(capture, folder, 512 * 10**6)
    spool: Spool = recording.tape._spool  # type: ignore[attr-defined]
    spool.take = writing(spool.take)  # type: ignore[method-assign]
    for moments in (capture.core.moments, capture.core.steady):
        for moment in ("pass_begun", "pass_ended", "backward_begun", "backward_done", "update_begun", "update_done"):
            watchers = getattr(moments, moment)
            watchers[:] = [hooks(one) if one.__wrapped__.__name__ == "timed" else one for one in watchers]
    recording._kept = hooks(recording._kept)  # type: ignore[method-assign]
    torch.manual_seed(0)
    step = step_of(program_of(name))
    for _ in range(5):
        step()
    hooks.seconds = writing.seconds = 0.0
    began = time.process_time()
    for _ in range(steps):
        step()
    recording.tape.flush()  # type: ignore[attr-defined]
    whole = time.process_time() - began
    capture.close()
    recording.tape.close()  # type: ignore[attr-defined]
    rest = whole - hooks.seconds - writing.seconds
    size = sum(file.stat().st_size for file in folder.rglob("*")) / 1e6
    parts = f"in the training {hooks.seconds / rest:.2%}, writing {writing.seconds / rest:.2%}"
    print(
        f"{name:8} step {rest / steps * 1e3:.1f} ms of CPU: {parts}; {size:.0f} MB after {steps + 5} updates",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*", default=["gpt", "resnet", "mlp"])
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.programs:
        with tempfile.TemporaryDirectory() as folder:
            measure(name, options.steps, Path(folder))


if __name__ == "__main__":
    main()
