"""A recording on its way to disk: the training thread hands over copies, a thread of its own writes them."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn
from torch.optim import Optimizer

from neuraldbg.capture.torch.recording.losses import Remade, told_loss
from neuraldbg.capture.torch.recording.names import Names
from neuraldbg.capture.torch.recording.spool import FOLDER, Item, Spool
from neuraldbg.capture.torch.recording.taking import Recording
from neuraldbg.capture.torch.recording.tape import (
    DEFAULT_BYTES,
    EVERY,
    Arrived,
    Entry,
    State,
    TapedBackward,
    TapedCall,
    TapedPass,
    TapedUpdate,
    size_of,
)

STATE_SHARE: Final = 0.003  # of the CPU time that states may take: where they are dear they are taken more rarely
FLUSH_BYTES: Final = 16 * 2**20
ENTRY_BYTES: Final = 500  # of an entry without tensors
PATIENCE_S: Final = 60.0


class DiskTape:
    """A Keeper. What waits in memory and what lies on disk stay below `limit_bytes` each. When the disk is too slow
    entries are left out, and the next state is a new beginning."""

    def __init__(
        self,
        folder: Path,
        limit_bytes: int = DEFAULT_BYTES,
        *,
        say: Callable[[str], None] = lambda _: None,
        share: float = STATE_SHARE,
    ) -> None:
        self.names = Names()
        self.count = 0
        self.folder = folder
        self._limit = limit_bytes
        self._share = share
        self._spool = Spool(folder, limit_bytes, say)
        self._queue: deque[Item] = deque()
        self._handed = 0  # bytes, by the training
        self._written = 0  # of them
        self._stale = False  # the newest state is no place to begin from
        self._open = False  # a state was handed over and nothing was left out since
        self._states: list[int] = []  # where they stand, as far as a gradient may still come to a pass before them
        self._state_at = 0.0
        self._state_cost = 0.0
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._began = time.monotonic()
        self._wake, self._over = threading.Event(), False
        self._idle = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="neuraldbg-recording", daemon=True)
        self._thread.start()

    # -- the training's side -------------------------------------------------------------------------------------------

    @property
    def failed(self) -> str | None:
        return self._spool.failed

    def wants_state(self, updates: int) -> bool:
        if self.failed:
            return False
        if not self._open or self._stale:
            return True
        cost = self._state_cost + self._spool.state_cost_s
        return updates >= EVERY and (time.process_time() - self._state_at) * self._share >= cost

    def add(self, entry: Entry) -> None:
        entry.number, self.count = self.count, self.count + 1
        root = entry.root() if isinstance(entry, TapedPass) else None
        if root is not None:
            self.names.model(root, entry.site)  # type: ignore[union-attr]
        if not self._open:
            return
        told: dict[str, Any] = {"n": entry.number, "step": entry.step}
        if isinstance(entry, TapedPass):
            self._add_pass(entry, told)
        elif isinstance(entry, TapedBackward):
            loss = None if entry.loss is None else told_loss(entry.loss)
            size = 0 if entry.loss is None else size_of([entry.loss.target])
            told |= {"kind": "backward", "number": entry.backward}
            self._put(Item(told, values={"value": entry.value, "loss": loss}), size)
        elif isinstance(entry, TapedCall):
            self._add_call(entry, told)
        else:
            self._add_update(entry, told)

    def _add_pass(self, entry: TapedPass, told: dict[str, Any]) -> None:
        root = entry.root()
        if root is None:
            return
        if root not in self._models:
            self._introduce(root)
        told |= {"kind": "pass", "root": self.names.model(root), "entry": entry.path, "refused": entry.refused}
        self._put(Item(told, record=entry.record, trainable=entry.trainable), entry.bytes)

    def _introduce(self, root: nn.Module) -> None:
        """What no update moves is written once: parameters without an optimizer."""
        number = self.names.model(root)
        keys = [(self.names.parameter(p), p) for p in root.parameters()]
        still = {str(key): p.detach().clone() for key, p in keys if key is not None and key.startswith("m")}
        if self._put(Item({"kind": "model", "root": number}, tensors=still), size_of(still.values())):
            self._models.add(root)

    def ended(self, taped: TapedPass) -> None:
        if self._open:
            self._put(Item({"kind": "ended", "pass": taped.number, "digest": taped.digest, "step": taped.step}))

    def arrived(self, taped: TapedPass, backward: int, slot: int, gradient: Arrived) -> None:
        if not self._open:
            return
        crossed = [at for at in self._states if at > taped.number]
        if crossed:
            self._states = [at for at in self._states if at <= taped.number]
            self._put(Item({"kind": "void", "after": taped.number, "step": taped.step}))
            self._stale = True
        told = {"kind": "arrived", "pass": taped.number, "backward": backward, "slot": slot, "step": taped.step}
        if isinstance(gradient, Remade):
            self._put(Item({**told, "digest": gradient.digest}))
        else:
            self._put(Item(told, values={"gradient": gradient}), size_of([gradient]))

    def _add_call(self, entry: TapedCall, told: dict[str, Any]) -> None:
        held = [p for p in (ref() for ref in entry.parameters) if p is not None]
        told |= {"kind": "call", "name": entry.name, "of": self.names.parameters(held)}
        self._put(Item(told, values={"amounts": entry.amounts}))

    def _add_update(self, entry: TapedUpdate, told: dict[str, Any]) -> None:
        optimizer = entry.optimizer()
        if optimizer is None:
            return
        told |= {"kind": "update", "optimizer": self.names.optimizer(optimizer), "refused": entry.refused}
        told["digests"] = list(entry.digests.items())
        values = {"groups": list(entry.groups), "gradients": entry.gradients}
        self._put(Item(told, values=values), entry.bytes)

    def add_optimizer(self, optimizer: Optimizer) -> None:
        self.names.optimizer(optimizer)

    def late(self, optimizer: Optimizer, kept: dict[int, dict[str, Any]]) -> None:  # noqa: ARG002
        """The states on disk lack it: only the next one is a place to begin from."""
        self._stale = True

    def add_state(self, state: State) -> None:
        state.at = self.count
        tensors: dict[str, Tensor] = {}
        for (ref, value), (_, gradient) in zip(state.parameters, state.gradients, strict=True):
            parameter = ref()
            key = None if parameter is None else self.names.parameter(parameter)
            if key is not None:
                tensors[f"p/{key}"] = value
                if gradient is not None:
                    tensors[f"g/{key}"] = gradient
        kept: list[Any] = []
        for one, entries in state.optimizers:
            optimizer = one()
            if optimizer is not None:
                kept.append([self.names.optimizer(optimizer), entries])
        self._open, self._stale = True, False
        if self._put(Item({"kind": "state", "at": state.at, "step": state.step, "kept": kept}, tensors), state.bytes):
            self._states = [*self._states[-3:], state.at]
        self._state_at, self._state_cost = time.process_time(), state.taken_s

    def _put(self, item: Item, size: int = 0) -> bool:
        item.bytes = size + ENTRY_BYTES
        waiting = self._handed - self._written + item.bytes
        if self.failed or self._over or waiting > self._limit:
            self._open = False
            return False
        self._handed += item.bytes
        self._queue.append(item)
        if waiting > min(FLUSH_BYTES, self._limit // 4):
            self._wake.set()
        return True

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        while not self._over:
            self._wake.wait(self._pause())
            self._wake.clear()
            self._drain()
        self._drain()
        self._spool.close(self.names)

    def _pause(self) -> float:
        """Seconds between two files: of a long run, more."""
        return min(max((time.monotonic() - self._began) / 500, 1.0), 15.0)

    def _drain(self) -> None:
        items = []
        while self._queue:
            items.append(self._queue.popleft())
        self._spool.take(items, self.names)
        self._written += sum(item.bytes for item in items)
        with self._idle:
            self._idle.notify_all()

    def flush(self) -> None:
        """Until everything handed over so far is on disk."""
        deadline = time.monotonic() + PATIENCE_S
        while self._written < self._handed and self._thread.is_alive() and time.monotonic() < deadline:
            self._wake.set()
            with self._idle:
                self._idle.wait(0.1)

    def close(self) -> None:
        self._over = True
        self._wake.set()
        self._thread.join(PATIENCE_S)


def record_to_disk(capture: Any, run_dir: Path, limit_bytes: int) -> Recording:
    """Of a capture that has just begun."""
    recorder = capture.core.recorder
    tape = DiskTape(run_dir / FOLDER, limit_bytes, say=partial(recorder.note, "warning"))
    return Recording(capture.core, capture.patches, tape)
