"""Which line of the user's code an operation of the loss stands on.

Nothing is recorded there on an ordinary step. So on the first few updates autograd keeps with every node that is made
outside of passes where it was made (anomaly mode without its checks); a node at the same place of a later graph stands
on the same line. Where that does not help, the source text is searched for the operation.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import traceback as kept_by_torch

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.origin.graph import Path, op_of, walk

if TYPE_CHECKING:
    from neuraldbg.capture.torch.core import Core
    from neuraldbg.capture.torch.frames import Frames

FIRST_UPDATES = 3
MOST_WINDOWS = 64
MOST_LINES = 400
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
_WRITTEN = {  # how an operation is written: names of calls, operators
    "log": ({"log", "log_"}, ()),
    "log2": ({"log2"}, ()),
    "log10": ({"log10"}, ()),
    "log1p": ({"log1p"}, ()),
    "xlogy": ({"xlogy"}, ()),
    "logit": ({"logit"}, ()),
    "special_entr": ({"entr"}, ()),
    "div": ({"div", "div_", "divide", "true_divide"}, (ast.Div,)),
    "reciprocal": ({"reciprocal"}, (ast.Div,)),
    "sqrt": ({"sqrt", "sqrt_"}, ()),
    "rsqrt": ({"rsqrt"}, ()),
    "pow": ({"pow", "pow_", "square"}, (ast.Pow,)),
    "exp": ({"exp", "exp_"}, ()),
    "softmax": ({"softmax", "Softmax"}, ()),
    "log_softmax": ({"log_softmax", "cross_entropy", "CrossEntropyLoss"}, ()),
    "nll_loss": ({"nll_loss", "cross_entropy", "NLLLoss", "CrossEntropyLoss"}, ()),
    "mse_loss": ({"mse_loss", "MSELoss"}, ()),
    "norm": ({"norm", "vector_norm"}, ()),
    "linalg_vector_norm": ({"norm", "vector_norm"}, ()),
}


class LossLines:
    def __init__(self, core: Core) -> None:
        self.core = core
        self.lines: dict[tuple[int, Path, str], str] = {}  # line of the backward, place, operation -> line
        self.is_open = False
        self._windows = 0
        self._usual = kept_by_torch.format_stack, torch.is_anomaly_enabled

    # -- the first updates --------------------------------------------------------------------------------------------

    def open(self) -> None:
        """User code outside of passes begins."""
        if self.is_open or self.core.recorder.step >= FIRST_UPDATES or self._windows >= MOST_WINDOWS:
            return
        if torch.is_anomaly_enabled() or self.core.here.local.in_backward:
            return  # the user's own; not ours to switch off
        self._windows += 1
        self._usual = kept_by_torch.format_stack, torch.is_anomaly_enabled
        self.is_open = True
        self._stand_in(self._stack, self._asked)
        torch.set_anomaly_enabled(True, False)

    def close(self) -> None:
        if self.is_open:
            self._stand_in(*self._usual)
            if not torch.is_anomaly_check_nan_enabled():  # else the script has switched it on meanwhile
                torch.set_anomaly_enabled(False, True)
            self.is_open = False

    def _stand_in(self, stack: Callable[[], list[str]], asked: Callable[[], bool]) -> None:
        kept_by_torch.format_stack = stack
        torch.is_anomaly_enabled = asked

    def _asked(self) -> bool:
        """Who switches it on, as `detect_anomaly` does, first asks what to put back afterwards."""
        self.close()
        return torch.is_anomaly_enabled()

    def _stack(self) -> list[str]:
        """What autograd keeps with a node: the user's frames as Python writes them, without the text of the lines,
        which takes 0.3 ms for those of torch and ours."""
        if kept_by_torch.has_preserved_node_meta():
            return self._usual[0]()
        return attempt(self._users) or []  # a failure would be the user's code's

    def _users(self) -> list[str]:
        frames = [(frame.f_code, frame.f_lineno) for frame in self.core.recorder.frames.user_frames()]
        return [f'  File "{code.co_filename}", line {line}, in {code.co_name}\n' for code, line in reversed(frames)]

    def learn(self, loss: Tensor, source: int) -> None:
        """At a backward of the first updates: where each node of the loss code was made."""
        if self.core.recorder.step >= FIRST_UPDATES or len(self.lines) >= MOST_LINES:
            return
        for node, path, _, _ in walk(loss.grad_fn, into_models=False, limit=MOST_LINES):
            line = made_at(node, self.core.recorder.frames)
            if line is not None:
                self.lines[source, path, op_of(node)] = line

    # -- later --------------------------------------------------------------------------------------------------------

    def of(self, source: int, path: Path, op: str) -> str | None:
        """The line of a node: as learnt, or the only line that is written so."""
        known = self.lines.get((source, path, op))
        if known is not None:
            return known
        same = {line for (where, _, name), line in self.lines.items() if where == source and name == op}
        if len(same) == 1:
            return same.pop()
        written: str | None = attempt(lambda: self._written(op))
        return written

    def _written(self, op: str) -> str | None:
        names, operators = _WRITTEN.get(op, ({op}, ()))
        found = []
        for filename in self.core.recorder.frames.own_files():
            text = "".join(linecache.getlines(filename))
            if text:
                shown = self.core.recorder.frames.display(filename)
                found += [f"{shown}:{line}" for line in _lines_with(text, names, operators)]
        return found[0] if len(set(found)) == 1 else None


def made_at(node: Any, frames: Frames) -> str | None:
    """The user's line that made a node, while autograd keeps it."""
    stack = node.metadata.get("traceback_")
    for text in reversed(stack or ()):
        found = _FRAME.search(text)
        if found and frames.is_user_file(found[1]):
            return f"{frames.display(found[1])}:{found[2]}"
    return None


def _lines_with(text: str, names: set[str], operators: tuple[type, ...]) -> list[int]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
            if name in names:
                found.add(called.end_lineno or node.lineno)
        elif isinstance(node, ast.BinOp) and operators and isinstance(node.op, operators):
            found.add(node.lineno)
    return sorted(found)
