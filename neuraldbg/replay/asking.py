"""Asking for a step of a run that is over: a child process re-creates the models and answers."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuraldbg.capture.torch.recording.environment import changed_files
from neuraldbg.errors import NotRecorded
from neuraldbg.records import RunInfo
from neuraldbg.replay.recorded import Recorded
from neuraldbg.replay.recreate import ANSWER, Errand
from neuraldbg.replay.running import OUTPUT, last_words, run_apart
from neuraldbg.replay.scratch import differences, look, scratch_copy


@contextmanager
def made_again(
    run_dir: Path, run: RunInfo, step: int, layers: Sequence[tuple[int, str]], *, seconds: float, bundle: bool = False
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder with the tensors, and the answer; the folder is gone afterwards."""
    recorded = Recorded(run_dir)
    recorded.state_for(step)
    origin = Path(run.cwd or ".")
    changed = changed_files(recorded.environment, origin)
    if changed:
        raise NotRecorded(f"changed since the run was recorded: {', '.join(changed[:5])}; a step cannot be made again")
    before = look(origin)
    with tempfile.TemporaryDirectory(prefix="neuraldbg-replay-") as out, scratch_copy(origin) as scratch:
        errand = _errand(run, run_dir, scratch, Path(out), (step, layers), bundle=bundle)
        code, late = _run(errand, seconds)
        touched = differences(before, look(origin))
        yield Path(out), {**_answer(errand, code, late=late, seconds=seconds), "touched": touched}


def _errand(
    run: RunInfo, run_dir: Path, scratch: Path, out: Path, asked: tuple[int, Sequence[tuple[int, str]]], *, bundle: bool
) -> Errand:
    module = run.command[:1] == ("-m",)
    target, *args = run.command[1:] if module else run.command
    origin = Path(run.cwd or ".")
    if not module and os.path.isabs(target) and Path(target).is_relative_to(origin):
        target = str(scratch / Path(target).relative_to(origin))
    return Errand(
        target=target,
        args=tuple(args),
        module=module,
        run_dir=str(run_dir.resolve()),
        scratch=str(scratch),
        origin=str(origin),
        step=asked[0],
        layers=tuple(asked[1]),
        out=str(out),
        bundle=bundle,
    )


def _run(errand: Errand, seconds: float) -> tuple[int, bool]:
    file = Path(errand.out) / "errand.json"
    file.write_text(errand.to_json(), encoding="utf-8")
    return run_apart("recreate", file, errand.scratch, Path(errand.out) / OUTPUT, seconds)


def _answer(errand: Errand, code: int, *, late: bool, seconds: float) -> dict[str, Any]:
    file = Path(errand.out) / ANSWER
    if file.is_file():
        answer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if "refused" in answer:
            raise NotRecorded(answer["refused"])
        return answer
    if late:
        raise NotRecorded(f"after {seconds:g} s the models were not there, or the step not made; a longer --timeout")
    said = last_words(Path(errand.out) / OUTPUT)
    raise NotRecorded(f"the script ended (exit code {code}) before its models were there: {said}")
