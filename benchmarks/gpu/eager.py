"""The eager sections of `all.py`: losses, memory, what default and full cost, synchronisation, and where it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from programs import IN_FULL, Results, Size, Training, equal, interval, name_of, rows_of, steps, wait, watched
from torch import Tensor
from turns import GROUPS, STRETCH, bare_ms, in_turns

from neuraldbg.capture.torch.recording.disk import record_to_disk
from neuraldbg.capture.torch.recording.taking import Recording

LATER = 130  # updates after which evidence is gathered in one of 33
RECORD_SHARE, RECORD_BYTES = 0.0025, 512_000_000
PADDED = 50304  # a vocabulary that matrix products of half precision like, as most people train with


def eager(size: Size, results: Results) -> None:
    results.add("machine", f"{name_of(size)}, torch {torch.__version__}")
    training = Training(size)
    training.run(steps(size, 5))
    _memory(size, results, training, partial(watched, 0.01))  # before anything of ours has run in this process
    _same_losses(size, results)
    _arms(size, results, training)
    _later(size, results, training)
    _no_sync(size, results, training)
    _what_costs(size, results, training)


def padded(size: Size, results: Results) -> None:
    """The same step without the slow matrix products of an odd vocabulary: less time for the host to hide in."""
    size = replace(size, vocab=PADDED if size.device == "cuda" else size.vocab)
    results.add("machine", f"{name_of(size)}, torch {torch.__version__}")
    training = Training(size)
    training.run(steps(size, 5))
    _arms(size, results, training)
    _later(size, results, training)
    _what_costs(size, results, training)


def recorded(size: Size, results: Results) -> None:
    """Watched by default with what replay needs recorded: within a quarter of the budget, and of every step."""
    results.add("machine", f"{name_of(size)}, torch {torch.__version__}")
    training = Training(size)
    training.run(steps(size, 5))
    _memory(size, results, training, partial(recording, RECORD_SHARE))

    def arm(share: float | None) -> float:
        with recording(share) as kept:
            training.run(steps(size, IN_FULL))
            took = training.timed(steps(size, STRETCH))
            results.add(f"recording of share {share}", str(kept.tape.failed or "goes on"))
        return took

    arms = {
        "default, recording within the budget": partial(arm, RECORD_SHARE),
        "recording every step": partial(arm, None),
    }
    in_turns(size, results, training, arms)


@contextmanager
def recording(share: float | None) -> Iterator[Recording]:
    with watched(0.01 - (share or 0.0)) as (capture, run):
        kept = record_to_disk(capture, run, RECORD_BYTES, share)
        try:
            yield kept
        finally:
            kept.tape.close()


def _arms(size: Size, results: Results, training: Training) -> None:
    """Sessions of their own, in turn with bare steps. `full` are the first updates; in one of those that are timed
    evidence is gathered."""
    runs: list[Path] = []

    def default() -> float:
        with watched(0.01) as (capture, _):
            training.run(steps(size, IN_FULL))
            took = training.timed(steps(size, STRETCH))
            results.add("default overhead as told", capture.overhead())
        return took

    def full() -> float:
        training.run(steps(size, IN_FULL - 3))
        with watched(None) as (_, run):
            training.run(3)
            runs[:] = [run]
            return training.timed(steps(size, STRETCH))

    in_turns(size, results, training, {"default": default, "full, first updates": full})
    results.add("rows of one full step", rows_of(runs[0]))


def _later(size: Size, results: Results, training: Training) -> None:
    """One session, past its first updates; bare steps before and after it, steps with inert hooks in between."""
    before = bare_ms(size, training)
    full, inert, own = [], [], []
    with watched(None) as (capture, run):
        training.run(steps(size, LATER))
        wait(size)
        for _ in range(GROUPS):
            spent = capture.core.budget.own_ns
            full.append(training.timed(steps(size, STRETCH)))
            own.append((capture.core.budget.own_ns - spent) / steps(size, STRETCH) / 1e6)
            capture.core.on = False
            inert.append(training.timed(steps(size, STRETCH)))
            capture.core.on = True
    bare = (before + bare_ms(size, training)) / 2
    results.add("full, later / bare", interval([one / bare for one in full]))
    results.add("inert hooks / bare", interval([one / bare for one in inert]))
    results.add("our own host ms of a full step, later", interval(own))
    results.add("rows of one full step, later", rows_of(run))


def _memory(size: Size, results: Results, training: Training, session: Callable[[], Any]) -> None:
    """Default mode against the same steps without it, in one process: what we add to host and device."""
    host, peaks = [], []

    def peak(count: int) -> None:
        if size.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        training.run(count)
        wait(size)
        peaks.append(torch.cuda.max_memory_allocated() if size.device == "cuda" else 0)
        host.append(_uss_bytes())

    peak(3)
    with session():
        peak(steps(size, IN_FULL + 5))
    results.add("MB added: host (USS)", (host[1] - host[0]) / 2**20)
    results.add("MB added: peak of the device", (peaks[1] - peaks[0]) / 2**20)


def _uss_bytes() -> int:
    """Memory that is this process's alone."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def _no_sync(size: Size, results: Results, training: Training) -> None:
    if size.device != "cuda":
        return
    with watched(None):
        training.run(3)
        torch.cuda.set_sync_debug_mode("error")
        try:
            training.run(8)
            results.add("no synchronisation in 8 full steps", True)
        except RuntimeError as error:
            results.add("no synchronisation in 8 full steps", f"False: {error}")
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _same_losses(size: Size, results: Results) -> None:
    torch.use_deterministic_algorithms(True)

    def losses() -> list[Tensor]:
        return Training(size).run(steps(size, 6))

    first, again = losses(), losses()
    with watched(None):
        ours = losses()
    results.add("control repeats its losses", equal(first, again))
    results.add("losses identical to the bare run", equal(first, ours))
    torch.use_deterministic_algorithms(False)


def _what_costs(size: Size, results: Results, training: Training) -> None:
    """Kernels of a full step that a bare one does not have, by their time; and where the host spends its own."""
    from torch.profiler import ProfilerActivity, profile

    def totals(run: Callable[[], Any]) -> dict[str, float]:
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            run()
            wait(size)
        found: Counter[str] = Counter()
        for event in seen.events():
            if "CUDA" in str(event.device_type):
                found[event.name[:60]] += event.time_range.elapsed_us() / 1e3
        return dict(found)

    training.run(1)
    bare = totals(training.step)
    with watched(None):
        training.run(3)
        full = totals(training.step)
    more = sorted(((full[name] - bare.get(name, 0.0), name) for name in full), reverse=True)[:12]
    results.add("device ms more in a full step", {name: round(ms, 3) for ms, name in more if ms > 0.02})
    results.add("device ms in all", {"bare": round(sum(bare.values()), 2), "full": round(sum(full.values()), 2)})
