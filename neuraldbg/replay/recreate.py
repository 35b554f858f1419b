"""The user's script in a process of its own, up to where its models and optimizers are there: then a recorded step is
made again with them. Nothing is trained: updates find no gradients.

python -m neuraldbg.replay.recreate ERRAND.json
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neuraldbg.capture.guard import attempt_or_why
from neuraldbg.capture.importing import ImportWatch
from neuraldbg.capture.torch.repeatable import Repeatable
from neuraldbg.errors import NeuralDbgError
from neuraldbg.replay.guarding import Guard
from neuraldbg.script import load_module, load_script

ANSWER = "answer.json"
TENSORS = "tensors.safetensors"


@dataclass(frozen=True, slots=True)
class Errand:
    """What to make again; travels as a JSON file."""

    target: str
    args: tuple[str, ...]
    module: bool
    run_dir: str
    scratch: str  # the copy of the working directory it runs in
    origin: str  # the working directory itself, which is not written to
    step: int
    layers: tuple[tuple[int, str], ...]  # site of the model and path in it
    out: str  # folder for the answer
    deterministic: bool = False  # repeatable kernels
    bundle: bool = False  # also what a script of its own needs to make the step again

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Errand:
        fields = json.loads(text)
        layers = tuple((site, path) for site, path in fields["layers"])
        return cls(**{**fields, "args": tuple(fields["args"]), "layers": layers})


class Done(BaseException):
    """The answer is written. No `except Exception` of a script holds it up."""


class Recreation:
    """Waits until everything that the step takes has been built, then makes it again."""

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._watch = ImportWatch("torch", self._torch_imported)
        self._capture: Any = None
        self._repeatable: Repeatable | None = None
        self._objects: Any = None
        self._recorded: Any = None
        self._needed: tuple[set[int], set[int]] = (set(), set())
        self.answered = False

    def install(self) -> None:
        self._watch.install()

    def _torch_imported(self) -> None:
        import torch

        from neuraldbg.capture.torch.attach import Options, TorchCapture
        from neuraldbg.replay.recorded import Objects, Recorded

        if self._errand.deterministic:
            self._repeatable = Repeatable()
        self._recorded = Recorded(Path(self._errand.run_dir))
        torch.set_num_threads(self._recorded.environment["threads"])
        self._objects = Objects()
        self._needed = self._recorded.needs(self._errand.step)
        self._capture = TorchCapture(lambda: None, Options(budget=0.0, recording=False, strict=True))
        core = self._capture.core
        if self._repeatable is not None:
            core.take_part("pass_begun", "repeatable kernels", self._repeatable.before_pass)
        core.take_part("pass_begun", "recreation", self._pass_begun)
        core.take_part("optimizer_created", "recreation", self._optimizer_created)
        core.take_part("update_begun", "recreation", self._update_begun)

    def _pass_begun(self, one: Any, root: Any, *_: Any) -> None:
        from neuraldbg.capture.torch.recording.names import has_a_shape

        if root is None or not one.grad or not has_a_shape(root):
            return
        if all(root is not each for each in self._objects.models):
            self._objects.models.append(root)
        models, optimizers = self._needed
        if all(number < len(self._objects.models) for number in models) and all(
            number < len(self._objects.optimizers) for number in optimizers
        ):
            self._answer()

    def _optimizer_created(self, optimizer: Any) -> None:
        self._objects.optimizers.append(optimizer)

    def _update_begun(self, optimizer: Any, _: Any) -> None:
        """Nothing is trained before everything is there."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _answer(self) -> None:
        _, why = attempt_or_why(self._make_again)
        if why is not None:  # the model itself fails: nothing of that may reach what the script catches
            refuse(self._errand, f"step {self._errand.step} cannot be made again: {why}")
        self.answered = True
        raise Done

    def _make_again(self) -> None:
        from neuraldbg.replay.answering import answer

        try:
            answer(self._errand, self._recorded, self._objects, self._capture.core)
        except NeuralDbgError as error:
            refuse(self._errand, str(error))

    def close(self) -> None:
        self._watch.remove()
        if self._capture is not None:
            self._capture.close()
        if self._repeatable is not None:
            self._repeatable.close()


def refuse(errand: Errand, why: str) -> None:
    Path(errand.out, ANSWER).write_text(json.dumps({"refused": why}), encoding="utf-8")


def run(errand: Errand) -> int:
    os.chdir(errand.scratch)
    guard = Guard(errand.origin, errand.scratch, errand.run_dir)
    program = load_module(errand.target, errand.args) if errand.module else load_script(errand.target, errand.args)
    recreation = Recreation(errand)
    recreation.install()
    guard.install()
    try:
        outcome = program.run()
    finally:
        guard.remove()
    recreation.close()
    return 0 if recreation.answered else outcome.exit_code or 1


def main() -> None:
    errand = Errand.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        code = run(errand)
    except NeuralDbgError as error:
        refuse(errand, str(error))
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    main()
