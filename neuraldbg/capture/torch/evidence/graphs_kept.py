"""Graphs that outlive their step: how many, and which variable of the script holds them."""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch import Tensor

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.growing import growing_line
from neuraldbg.capture.torch.in_sight import held_by_the_user
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

MOST = 4096  # graphs that are followed at a time
OLD = 4  # updates of every optimizer after which a graph should be gone
_FIRST_LOOK = 8  # old graphs that make us look for who holds them
_EVERY = 64  # updates between two counts on quiet steps
PASS = "neuraldbg_pass"
TOKEN = "neuraldbg_graph"


class Token:
    """Lies in the metadata of a graph's node and goes when the graph does."""

    __slots__ = ("__weakref__",)


class KeptGraphs:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._updates = capture.updates
        self._data_sets = capture.batches.data_sets
        self._alive: dict[int, tuple[weakref.ref[Token], int, int]] = {}  # pass -> token, step, graphs it stands for
        self._followed = 0
        self._told_at, self._stands_for = -1, 1  # later one step of many is looked at, and stands for those before
        self._look_at = _FIRST_LOOK
        self._counted_at = 0
        core = self.core
        core.take_part("pass_ended", "graphs of passes", self._pass_ended, early=True)
        core.take_part("update_done", "graphs alive", self._updated, rarely=True)
        core.take_part("ending", "graphs alive at the end", self._ending)

    def _pass_ended(self, one: Pass, _: Any, __: Any, outputs: Any) -> None:
        if not one.grad or len(self._alive) >= MOST:
            return
        node: Any = outputs.grad_fn if isinstance(outputs, Tensor) else None
        if node is None:
            node = next((tensor.grad_fn for tensor in tensors(outputs) if tensor.grad_fn is not None), None)
        if node is None:
            return
        token = node.metadata.get(TOKEN)
        if token is None:
            token = node.metadata[TOKEN] = Token()
            alive, number, step = self._alive, one.id, self.core.recorder.step
            if step != self._told_at:
                self._told_at, self._stands_for = step, max(step - self._told_at, 1)
            self._followed += self._stands_for
            alive[number] = (weakref.ref(token, lambda _: alive.pop(number, None)), step, self._stands_for)

    def _updated(self, *_: Any) -> None:
        step = self.core.recorder.step
        due = self.core.looking or self.core.budget.starting or step - self._counted_at >= _EVERY
        if not self._alive or not due:
            return
        self._counted_at = step
        if sum(count for _, _, count in self._alive.values()) < _FIRST_LOOK:
            return
        old = self._old(step)
        self.core.recorder.scalar("graphs_kept", float(old))
        if old >= self._look_at:
            self._look_at = 4 * old
            self._write(old, self._holder())

    def _old(self, step: int) -> int:
        patience = OLD * max(len(self._updates.optimizers), 1)
        return sum(count for _, born, count in self._alive.values() if born <= step - patience)

    def _write(self, old: int, holder: dict[str, Any] | None) -> None:
        self.core.recorder.fact(
            "graphs_kept", count=old, followed=self._followed, full=len(self._alive) >= MOST, holder=holder
        )

    def _ending(self) -> None:
        if self._look_at > _FIRST_LOOK:
            self._write(self._old(self.core.recorder.step), None)

    # -- who holds them ----------------------------------------------------------------------------------------------

    def _holder(self) -> dict[str, Any] | None:
        """The variable, list or attribute with the most graphs in it."""
        frames = self.core.recorder.frames
        best: tuple[tuple[bool, int], dict[str, Any] | None] = ((False, 0), None)
        for files, where, what in held_by_the_user(frames, self._data_sets()):
            found = attempt(partial(_graphs_in, what)) or 0
            rank = (not isinstance(what, Tensor), found)  # a list before what was computed from it
            if found > 1 and rank > best[0]:
                best = rank, {"name": where, "graphs": found, "kind": type(what).__name__, "files": files}
        if best[1] is not None:
            best[1]["source"] = attempt(partial(growing_line, frames, best[1].pop("files"), best[1]["name"]))
        return best[1]


def _graphs_in(value: Any, depth: int = 0) -> int:
    """How many graphs of passes something keeps alive: a tensor by its own graph, a container by its items."""
    if isinstance(value, Tensor):
        return _passes_below(value)
    if depth < 2 and isinstance(value, list | tuple | deque | dict | set):
        items = list(value.values()) if isinstance(value, dict) else list(islice(value, 20_000))
        if len(items) > 6:  # the ends stand for the rest
            ends = sum(_graphs_in(item, depth + 1) > 0 for item in (*items[:3], *items[-3:]))
            return len(items) * ends // 6
        return sum(min(_graphs_in(item, depth + 1), 2) for item in items)
    return 0


def _passes_below(tensor: Tensor) -> int:
    if tensor.grad_fn is None:
        return 0
    found: set[int] = set()
    queue, seen = deque([tensor.grad_fn]), {tensor.grad_fn}
    while queue and len(seen) < 2000:
        node: Any = queue.popleft()
        mark = node.metadata.get(PASS)
        if mark is not None:
            found.add(mark)
            continue
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                queue.append(child)
    return max(len(found), 1)
