"""Running one arm: a copy of the working directory, a child process with limits, and how it ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from neuraldbg.analysis.diagnose import diagnose
from neuraldbg.analysis.series import scalar_series
from neuraldbg.capture.attachment import package_parent
from neuraldbg.capture.torch.repeatable import FIXED, WORKSPACE
from neuraldbg.errors import NeuralDbgError
from neuraldbg.records import RunInfo
from neuraldbg.replay.arm import ArmPlan
from neuraldbg.replay.candidates import Candidate
from neuraldbg.replay.outcomes import Ending
from neuraldbg.replay.patching import apply_patch
from neuraldbg.replay.scratch import scratch_copy
from neuraldbg.replay.target import target_of
from neuraldbg.trace import open_trace
from neuraldbg.trace.rundir import create_run, new_run_info

QUIET = {  # experiment trackers that would tell the world of an arm
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_MODE": "DISABLED",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:./mlruns-of-an-experiment",
    "AIM_TRACKING_DISABLED": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
PATIENCE_S = 5.0
OUTPUT = "output.txt"


@dataclass(frozen=True, slots=True)
class Limits:
    steps: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Bench:
    """What all arms of an experiment share."""

    run: RunInfo
    folder: Path  # <run>/whatif
    limits: Limits
    seeded: bool = False

    @property
    def origin(self) -> Path:
        return Path(self.run.cwd or ".")

    def arm(self, name: str, candidate: Candidate) -> Ending:
        """Run it to its end, to its last update or to its time limit."""
        with scratch_copy(self.origin, began_at(self.run)) as scratch:
            if candidate.patch is not None and not apply_patch(candidate.patch, scratch):
                raise PatchDoesNotApply(f"the patch for {candidate.causes[0]} does not apply")
            place = self._place(name)
            code, timed_out = run_arm(self._plan(candidate, place, scratch), place / OUTPUT, self.limits.seconds)
        return _ending(place, code, timed_out=timed_out)

    def _place(self, name: str) -> Path:
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        run = self.run
        info = new_run_info(run.command, script=run.script, budget="1%", deterministic=run.deterministic)
        return create_run(info, out=place)

    def _plan(self, candidate: Candidate, place: Path, scratch: Path) -> ArmPlan:
        target = target_of(self.run, scratch)
        return ArmPlan(
            target=target.name,
            args=target.args,
            module=target.module,
            changes=candidate.changes,
            run_dir=str(place),
            scratch=str(scratch),
            origin=str(self.origin),
            steps=self.limits.steps,
            seeded=self.seeded,
            deterministic=self.run.deterministic,
        )


def run_arm(plan: ArmPlan, output: Path, seconds: float) -> tuple[int, bool]:
    """The exit code of an arm that is run as a process of its own, and whether its time ran out."""
    with tempfile.TemporaryDirectory(prefix="neuraldbg-arm-") as folder:
        file = Path(folder) / "arm.json"
        file.write_text(plan.to_json(), encoding="utf-8")
        return run_apart("arm", file, plan.scratch, output, seconds, workspace=FIXED if plan.deterministic else None)


def run_apart(
    room: str, file: Path, scratch: str, output: Path, seconds: float, *, workspace: str | None = None
) -> tuple[int, bool]:
    """`main` of a module of this package, told by a file, as a process of its own in the scratch copy: its exit code,
    and whether its time ran out. `workspace`: of cuBLAS."""
    environment = quiet_environment(os.environ)
    if workspace is not None:
        environment[WORKSPACE] = workspace
    code = f"import sys; sys.path.append({package_parent()!r}); from neuraldbg.replay.{room} import main; main()"
    with open(output, "wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(file)],
            cwd=scratch,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return wait_for(process, seconds)


def began_at(run: RunInfo) -> float:
    return datetime.fromisoformat(run.started).timestamp()


class PatchDoesNotApply(NeuralDbgError):
    """The script is no longer the one the patch was made for."""


def quiet_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, **QUIET}


def wait_for(process: subprocess.Popen[bytes], seconds: float) -> tuple[int, bool]:
    """An arm that takes too long is ended as by Ctrl-C, then without asking. So is one whose parent is interrupted."""
    try:
        return process.wait(seconds), False
    except subprocess.TimeoutExpired:
        pass
    except BaseException:
        _end(process)
        raise
    _end(process)
    return process.returncode, True


def _end(process: subprocess.Popen[bytes]) -> None:
    for signum in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
            return


def _ending(place: Path, code: int, *, timed_out: bool) -> Ending:
    with open_trace(place) as trace:
        series = scalar_series(trace)
        losses = np.asarray(series["loss"][1], dtype=np.float64) if "loss" in series else np.empty(0)
        judgement = diagnose(trace)
    kinds = frozenset(one.finding.kind for one in judgement.loud)
    return Ending(losses, kinds, None if timed_out else code, timed_out)


def last_words(output: Path) -> str | None:
    """The last line that an arm printed: of a failed one, why."""
    try:
        lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return None
    return lines[-1] if lines else None
