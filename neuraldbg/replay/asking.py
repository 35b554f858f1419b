"""Asking for a step of a run that is over: a child process re-creates the models and answers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuraldbg.capture.torch.recording.environment import changed_files
from neuraldbg.capture.torch.repeatable import FIXED
from neuraldbg.errors import NotRecorded
from neuraldbg.records import RunInfo
from neuraldbg.replay.recorded import Recorded
from neuraldbg.replay.recreate import ANSWER, Errand
from neuraldbg.replay.running import OUTPUT, began_at, last_words, run_apart
from neuraldbg.replay.scratch import differences, look, scratch_copy
from neuraldbg.replay.target import target_of


@dataclass(frozen=True, slots=True)
class Wanted:
    step: int
    layers: Sequence[tuple[int, str]] = ()  # site of the model and path in it
    bundle: bool = False
    deterministic: bool = False  # repeatable kernels, also where the run did without


@contextmanager
def made_again(run_dir: Path, run: RunInfo, wanted: Wanted, *, seconds: float) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder with the tensors, and the answer; the folder is gone afterwards."""
    recorded = Recorded(run_dir)
    recorded.state_for(wanted.step)
    origin = Path(run.cwd or ".")
    changed = changed_files(recorded.environment, origin)
    if changed:
        raise NotRecorded(f"changed since the run was recorded: {', '.join(changed[:5])}; a step cannot be made again")
    before = look(origin)
    with tempfile.TemporaryDirectory(prefix="neuraldbg-replay-") as out, scratch_copy(origin, began_at(run)) as scratch:
        wanted = replace(wanted, deterministic=wanted.deterministic or recorded.repeatable)
        errand = _errand(run, run_dir, scratch, Path(out), wanted)
        code, late = _run(errand, seconds, recorded.environment.get("workspace"))
        touched = differences(before, look(origin))
        yield Path(out), {**_answer(errand, code, late=late, seconds=seconds), "touched": touched}


def _errand(run: RunInfo, run_dir: Path, scratch: Path, out: Path, wanted: Wanted) -> Errand:
    target = target_of(run, scratch)
    return Errand(
        target=target.name,
        args=target.args,
        module=target.module,
        run_dir=str(run_dir.resolve()),
        scratch=str(scratch),
        origin=str(Path(run.cwd or ".")),
        step=wanted.step,
        layers=tuple(wanted.layers),
        out=str(out),
        deterministic=wanted.deterministic,
        bundle=wanted.bundle,
    )


def _run(errand: Errand, seconds: float, workspace: str | None) -> tuple[int, bool]:
    file = Path(errand.out) / "errand.json"
    file.write_text(errand.to_json(), encoding="utf-8")
    if errand.deterministic and workspace is None:
        workspace = FIXED
    return run_apart("recreate", file, errand.scratch, Path(errand.out) / OUTPUT, seconds, workspace=workspace)


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
