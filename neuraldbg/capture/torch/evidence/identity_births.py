"""Where and how often the script makes its models and optimizers, and whether a new optimizer takes over what an
older one was training."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.core import cannot_look
from neuraldbg.capture.torch.sweep import owned

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

Stack = list[str]  # "train.py:42", innermost first
DEEPEST = 6  # frames of a stack that are kept
INTRODUCED = 64  # makings that get a fact of their own
CLOSELY = 128  # updates of an optimizer after which one of them stands for all
_LOOKED_AT = 4  # parameters by which a set is recognised


@dataclass(eq=False)
class Made:
    """An optimizer as it was made."""

    stack: Stack
    kind: str
    settings: tuple[Any, ...]
    parameters: list[weakref.ref[Tensor]]
    count: int
    updates: int = 0
    versions: list[int] = field(default_factory=list)  # of the parameters after its last update


@dataclass(eq=False)
class Line:
    """One line of the script that makes optimizers or models."""

    kind: str
    stack: Stack
    count: int = 0
    updates: list[int] = field(default_factory=list)  # that each one got before the next was made
    same: int = 0  # made over the very parameters the one before had
    untouched: int = 0  # ... which nothing had written to since its last update
    equal: int = 0  # ... and with the same settings
    models: list[weakref.ref[nn.Module]] = field(default_factory=list)
    last: Any = None
    began: int = 0  # update at which the last one was made


class Births:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self.optimizers: IdentityTable[Made] = IdentityTable()
        self.modules: IdentityTable[Stack] = IdentityTable()  # modules that hold others -> lines that made them
        self._lines: dict[tuple[str, str], Line] = {}
        self._models: IdentityTable[bool] = IdentityTable()
        self._given: IdentityTable[bool] = IdentityTable()  # parameters that were loaded
        self._introduced = 0
        self._known: set[int] = set()
        self._updates = capture.updates
        core = self.core
        core.take_part("optimizer_created", "optimizers made", self._optimizer_made)
        core.take_part("update_done", "updates of optimizers made", self._updated)
        core.take_part("pass_begun", "models made", self._pass, rarely=True)  # of first passes everybody is told
        core.take_part("loaded", "models loaded", self._loaded)
        core.take_part("ending", "what was made", self._ending)
        assembled = core.guard.shield("modules made")(self._assembled)

        def hook(parent: nn.Module, _: str, child: Any) -> None:  # a result would replace the child
            if core.on and child is not None and not cannot_look():
                assembled(parent)

        capture.patches.handle(torch_module.register_module_module_registration_hook(hook))

    def _stack(self, *, outside_modules: bool = False) -> Stack:
        """The user's lines that are running, up to where we started the script; `outside_modules` leaves out
        constructors of modules."""
        frames = self.core.recorder.frames
        stack: Stack = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and len(stack) < DEEPEST:
            if frames.is_user(frame.f_code):
                if stack or not (outside_modules and _constructs_a_module(frame)):
                    stack.append(f"{frames.display(frame.f_code.co_filename)}:{frame.f_lineno}")
            elif stack and frame.f_globals.get("__name__", "").startswith("neuraldbg."):
                break
            frame = frame.f_back
        return stack

    # -- modules -----------------------------------------------------------------------------------------------------

    def _assembled(self, parent: nn.Module) -> None:
        if parent not in self.modules:
            self.modules[parent] = self._stack(outside_modules=True)

    def _pass(self, one: Any, root: nn.Module, *_: Any) -> None:
        if root is None or root in self._models:
            return
        self._models[root] = True
        if len(self._given) and any(parameter in self._given for parameter in root.parameters()):
            self.core.recorder.fact("model_loaded", site=one.model.site)
        stack = self.modules.get(root)
        if not stack:
            return
        line = self._line("model", type(root).__name__, stack)
        step = self.core.recorder.step
        if line.count > 1:
            line.updates.append(step - line.began)
        line.began = step
        if len(line.models) < 64:
            line.models.append(weakref.ref(root))
        self._introduce("model_made", one.model.site, stack)
        self._write_line(line)

    def _loaded(self, owner: Any, *_: Any) -> None:
        """Before its first pass a model has no site yet that a row of the ledger could name."""
        if isinstance(owner, nn.Module):
            for parameter in owner.parameters():
                self._given[parameter] = True

    # -- optimizers --------------------------------------------------------------------------------------------------

    def _optimizer_made(self, optimizer: Optimizer) -> None:
        stack = self._stack()
        if not stack:
            return
        kind = type(optimizer).__name__
        mine = owned(optimizer)
        line = self._line("optimizer", kind, stack)
        made = Made(stack, kind, _settings(optimizer), [weakref.ref(p) for p in mine[:_LOOKED_AT]], len(mine))
        before = line.last
        if before is not None:
            line.updates.append(before.updates)
            self._compare(line, before, made)
        line.last = made
        self.optimizers[optimizer] = made
        self._write_line(line)

    def _compare(self, line: Line, before: Made, made: Made) -> None:
        pairs = [(old(), new()) for old, new in zip(before.parameters, made.parameters, strict=False)]
        if before.count != made.count or not pairs or any(old is None or old is not new for old, new in pairs):
            return
        line.same += 1
        versions = [_version(old) for old, _ in pairs]
        if before.versions and before.versions == versions[: len(before.versions)]:
            line.untouched += 1
            line.equal += before.settings == made.settings

    def _updated(self, optimizer: Optimizer, known: Any) -> None:
        made = self.optimizers.get(optimizer)
        if made is None:
            return
        made.updates += 1
        if made.updates > CLOSELY:
            first = made.parameters[0]() if made.parameters else None
            made.versions = [] if first is None else [first._version]
        else:
            made.versions = [  # as `_version`, without a frame
                -1 if (p := ref()) is None or p.is_inference() else p._version for ref in made.parameters
            ]
        if made.updates == 1:
            self._introduce("optimizer_made", known.site, made.stack)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _line(self, what: str, kind: str, stack: Stack) -> Line:
        line = self._lines.setdefault((f"{what} {kind}", stack[0]), Line(f"{what} {kind}", stack))
        line.count += 1
        return line

    def _introduce(self, fact: str, site: int, stack: Stack) -> None:
        if self._introduced < INTRODUCED and site not in self._known:
            self._introduced += 1
            self._known.add(site)
            self.core.recorder.fact(fact, site=site, source=stack[0], stack=stack)

    def _write_line(self, line: Line, *, last: bool = False) -> None:
        """When a line has made something for the 2nd, 4th, 8th... time, and at the end."""
        often = line.count & (line.count - 1) == 0
        if line.count < 2 or not (last or often):
            return
        what, _, kind = line.kind.partition(" ")
        made: Made | None = line.last if what == "optimizer" else None
        updates = [*line.updates, made.updates if made is not None else self.core.recorder.step - line.began]
        self.core.recorder.fact(
            "made_again",
            what=what,
            **{"class": kind},
            source=line.stack[0],
            stack=line.stack,
            count=line.count,
            updates=updates[-64:],
            same_parameters=line.same,
            untouched=line.untouched,
            same_settings=line.equal,
            gone=sum(ref() is None for ref in line.models),
            settings=[] if made is None else [str(item) for item in made.settings],
        )

    def _ending(self) -> None:
        for optimizer, known in self._updates.optimizers.items():
            made = self.optimizers.get(optimizer)
            if made is not None:
                self._introduce("optimizer_made", known.site, made.stack)
        for line in self._lines.values():
            self._write_line(line, last=True)


def _constructs_a_module(frame: FrameType) -> bool:
    return frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), nn.Module)


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def _settings(optimizer: Optimizer) -> tuple[Any, ...]:
    """Hyper-parameters as plain values, to tell a deliberate change of them from a mere new beginning."""
    plain = (int, float, bool, str, tuple)
    return tuple(
        (key, value)
        for group in optimizer.param_groups
        for key, value in group.items()
        if key != "params" and isinstance(value, plain)
    )
