"""One arm of an experiment: the user's script in a process of its own, with changes made to torch under it.

python -m neuraldbg.replay.arm ARM.json
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from neuraldbg.capture.attachment import Attachment, Plan
from neuraldbg.capture.importing import ImportWatch
from neuraldbg.capture.torch.patches import Patches
from neuraldbg.replay.changes import Place, parse
from neuraldbg.replay.guarding import Guard
from neuraldbg.replay.roots import Passes
from neuraldbg.script import load_module, load_script

SEED = 20_260_101  # of arms of a script that sets none


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """What an arm is to do; travels as a JSON file."""

    target: str
    args: tuple[str, ...]
    module: bool
    changes: tuple[str, ...]
    run_dir: str  # where its trace goes
    scratch: str  # the copy of the working directory it runs in
    origin: str  # the working directory itself, which is not written to
    steps: int | None
    seeded: bool = False
    deterministic: bool = False  # as the run was
    operations: str | None = None  # a file to log every operation to; then nothing else is recorded

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ArmPlan:
        fields = json.loads(text)
        return cls(**{**fields, "args": tuple(fields["args"]), "changes": tuple(fields["changes"])})


class EnoughSteps(BaseException):
    """The arm has made the updates it was asked for. No `except Exception` of a script holds it up."""


class Changed:
    """What is different in this process, from the import of torch to the end."""

    def __init__(self, plan: ArmPlan) -> None:
        self._plan = plan
        self._patches = Patches()
        self._updates = 0
        self._log: Any = None
        self._watch = ImportWatch("torch", self._torch_imported)

    def install(self) -> None:
        if self._plan.seeded:
            _seed_python(self._patches)
        self._watch.install()

    def _torch_imported(self) -> None:
        torch: Any = sys.modules["torch"]
        if self._plan.seeded:
            torch.manual_seed(SEED)
        if self._plan.operations is not None:
            from neuraldbg.replay.operations import log_operations

            self._log = log_operations(self._plan.operations)
        passes = Passes(torch, self._patches)
        place = Place(torch, self._patches, passes)
        for text in self._plan.changes:
            found, amount = parse(text)
            found.apply(place, amount)
        if self._plan.steps is not None:
            hook = import_module("torch.optim.optimizer").register_optimizer_step_post_hook
            self._patches.handle(hook(self._count))

    def _count(self, *_: Any) -> None:
        self._updates += 1
        if self._log is not None:
            self._log.step = self._updates
        if self._plan.steps is not None and self._updates >= self._plan.steps:
            raise EnoughSteps

    def close(self) -> None:
        self._watch.remove()
        self._patches.close()
        if self._log is not None:
            self._log.close()


def _seed_python(patches: Patches) -> None:
    """Also generators that a script makes without a seed."""
    import random

    import numpy as np

    random.seed(SEED)
    np.random.seed(SEED)
    made: Any = np.random.default_rng
    seeds = itertools.count(SEED)  # two generators of one script draw different numbers

    def seeded(seed: Any = None) -> Any:
        return made(next(seeds) if seed is None else seed)

    patches.replace(np.random, "default_rng", seeded)


def run(plan: ArmPlan) -> int:
    os.chdir(plan.scratch)
    guard = Guard(plan.origin, plan.scratch, plan.run_dir)
    program = load_module(plan.target, plan.args) if plan.module else load_script(plan.target, plan.args)
    changed = Changed(plan)
    attachment = (
        Attachment(Plan(plan.run_dir, 0.01, deterministic=plan.deterministic)) if plan.operations is None else None
    )
    changed.install()
    if attachment is not None:
        attachment.start()
    guard.install()
    began = time.monotonic()
    try:
        outcome = program.run()
        code, error, error_at = outcome.exit_code, outcome.error, outcome.error_at
        if error is not None and error.endswith("EnoughSteps"):
            code, error, error_at = 0, None, None
    finally:
        guard.remove()
    changed.close()
    if attachment is not None:
        attachment.close(exit_code=code, error=error, error_at=error_at, duration_s=time.monotonic() - began)
    return code


def main() -> None:
    sys.exit(run(ArmPlan.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
