"""What recording costs, part by part: python benchmarks/record_cost.py [gpt resnet mlp] [--steps 120] [--auto]

Of every step, or with --auto as by default: of 8 updates in a row when the time since has paid for them; the first 20,
which are had in any case, come before the measurement.

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

WARM = 25  # updates before it is measured


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


def measure(name: str, steps: int, folder: Path, share: float | None) -> None:
    capture = TorchCapture(lambda: None, Options(budget=0.0))
    hooks, writing = Timed(), Timed()
    recording = record_to_disk(capture, folder, 512 * 10**6 if share is None else 128 * 10**6, share)
    spool: Spool = recording.tape._spool  # type: ignore[attr-defined]
    spool.take = writing(spool.take)  # type: ignore[method-assign]
    for moments in (capture.core.moments, capture.core.steady):
        for moment in ("pass_begun", "pass_ended", "backward_begun", "backward_done", "update_begun", "update_done"):
            watchers = getattr(moments, moment)
            ours = ("timed", "_may_wake")
            watchers[:] = [hooks(one) if getattr(one, "__name__", "") in ours else one for one in watchers]
    recording._kept = hooks(recording._kept)  # type: ignore[method-assign]
    torch.manual_seed(0)
    step = step_of(program_of(name))
    for _ in range(WARM):
        step()
    recording.tape.flush()  # type: ignore[attr-defined]
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
        f"{name:8} step {rest / steps * 1e3:.1f} ms of CPU: {parts}; {size:.0f} MB after {steps + WARM} updates"
        + ("" if recording._pace is None else f", {recording._pace.windows - 1} stretches"),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*", default=["gpt", "resnet", "mlp"])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--auto", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.programs:
        with tempfile.TemporaryDirectory() as folder:
            measure(name, options.steps, Path(folder), 0.0025 if options.auto else None)


if __name__ == "__main__":
    main()
