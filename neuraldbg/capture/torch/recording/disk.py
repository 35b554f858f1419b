"""A recording on its way to disk: the training thread hands over copies, a thread of its own writes them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.members import parameters_of
from neuraldbg.capture.torch.pieces import copied
from neuraldbg.capture.torch.recording.losses import Remade, told_loss
from neuraldbg.capture.torch.recording.names import Names
from neuraldbg.capture.torch.recording.pacing import BY_ITSELF, Bounds, Pace
from neuraldbg.capture.torch.recording.spool import FOLDER, Item, Spool, told_autocast
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
FIRST_GROWS: Final = 3  # times: the first state holds no optimizer's memory yet, which may be twice the parameters
FLUSH_BYTES: Final = 16 * 2**20
ENTRY_BYTES: Final = 500  # of an entry without tensors
VARYING_EVERY: Final = 10  # updates, on CUDA without repeatable kernels: only the outputs of a state's step are exact
TAIL_SHARE: Final = 4  # of the limit: when so much has come since the last state, another one is taken
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
        windows: bool = False,
        bounds: Bounds | None = None,
    ) -> None:
        self.names = Names()
        self.count = 0
        self.folder = folder
        self._limit = limit_bytes
        self._bounds = bounds
        self._waiting = limit_bytes if bounds is None else min(limit_bytes, bounds.host)
        self._share = share
        self._spool = Spool(folder, limit_bytes, say, windows=windows)
        self._queue: deque[Item] = deque()
        self._handed = 0  # bytes, by the training
        self._written = 0  # of them
        self._stale = False  # the newest state is no place to begin from
        self._open = False  # a state was handed over and nothing was left out since
        self._states: list[int] = []  # where they stand, as far as a gradient may still come to a pass before them
        self._streams: dict[tuple[int, int], Any] = {}  # of devices, that what waits was put on
        self._devices: set[torch.device] = set()
        self._tail = 0  # bytes since the last state
        self._state_at = 0.0
        self._state_cost = 0.0
        self._taken = 0
        self._models: IdentityTable[bool] = IdentityTable()  # whose still parameters were handed over
        self._began = time.monotonic()
        self._wake, self._over = threading.Event(), False
        self._idle = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="neuraldbg-recording", daemon=True)
        self._thread.start()

    # -- the training's side -------------------------------------------------------------------------------------------

    @property
    def failed(self) -> str | None:
        return self._spool.failed

    def writer_s(self) -> float:
        """That the thread which writes has computed."""
        return self._spool.computed_s

    def wants_state(self, updates: int) -> bool:
        if self._spool.failed:
            return False
        if not self._open or self._stale or self._tail > self._limit // TAIL_SHARE:
            return True
        every = VARYING_EVERY if self._devices and not torch.are_deterministic_algorithms_enabled() else EVERY
        cost = (self._state_cost + self._spool.state_cost_s) * (FIRST_GROWS if self._taken == 1 else 1)
        return updates >= min(every, EVERY) and (time.process_time() - self._state_at) * self._share >= cost

    def admits(self, size: int, on_device: int = 0, what: str = "a state of the training") -> bool:
        """Whether a state of so many bytes can be taken now: not while the disk is behind, and never where it would not
        leave room for the next one."""
        why = None if self._bounds is None else self._bounds.too_much(size, on_device)
        if why is None and 2 * size > self._limit:
            why = f"and two of them have to fit into {self._limit >> 20} MB (--record-memory)"
        if why is not None:
            self.give_up(f"{what} takes {size >> 20} MB, {why}")
        return not self.failed and self._handed - self._written + size <= self._waiting

    def give_up(self, why: str) -> None:
        self._open = False
        self._spool.stop(why)

    def pause(self) -> None:
        """What comes next does not follow on what came: a number is left out, and a state comes first."""
        self.count += 1
        self._open = False

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
            told |= {"kind": "backward", "number": entry.backward, "autocast": told_autocast(entry.autocast)}
            self._put(Item(told, values={"value": entry.value, "loss": loss}), size)
        elif isinstance(entry, TapedCall):
            self._add_call(entry, told)
        else:
            self._add_update(entry, told)

    def _add_pass(self, entry: TapedPass, told: dict[str, Any]) -> None:
        root = entry.root()
        if root is None:
            return
        if root not in self._models and not self._introduce(root):
            self._open = False
            return
        told |= {"kind": "pass", "root": self.names.model(root), "entry": entry.path, "refused": entry.refused}
        self._put(Item(told, record=entry.record, trainable=entry.trainable), entry.bytes)

    def _introduce(self, root: nn.Module) -> bool:
        """What no update moves is written once: parameters without an optimizer. Nothing is copied that does not
        fit."""
        number = self.names.model(root)
        keys = [(self.names.parameter(p), p) for p in parameters_of(root)]
        still = {str(key): p.detach() for key, p in keys if key is not None and key.startswith("m")}
        size = size_of(still.values())
        on_device = size_of(each for each in still.values() if each.is_cuda)
        if not self.admits(size, on_device, "what no optimizer moves"):
            return False
        copies = dict(zip(still, copied(list(still.values())), strict=True))
        if not self._put(Item({"kind": "model", "root": number}, tensors=copies), size):
            return False
        self._models[root] = True
        return True

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

    def refuse(self, taped: TapedPass, why: str) -> None:
        if self._open:
            self._put(Item({"kind": "refused", "pass": taped.number, "why": why, "step": taped.step}))
        self._stale = True  # what follows begins anew

    def _add_call(self, entry: TapedCall, told: dict[str, Any]) -> None:
        held = [p for ref in entry.parameters if (p := ref()) is not None]
        told |= {"kind": "call", "name": entry.name, "of": self.names.parameters(held)}
        self._put(Item(told, values={"amounts": entry.amounts}))

    def _add_update(self, entry: TapedUpdate, told: dict[str, Any]) -> None:
        optimizer = entry.optimizer()
        if optimizer is None:
            return
        told |= {"kind": "update", "optimizer": self.names.optimizer(optimizer), "refused": entry.refused}
        told["digests"] = list(entry.digests.items())
        values = {"groups": list(entry.groups), "gradients": entry.gradients, "scaling": entry.scaling}
        self._put(Item(told, values=values), entry.bytes)

    def add_optimizer(self, optimizer: Optimizer) -> None:
        self.names.optimizer(optimizer)

    def meet(self, root: nn.Module, site: int) -> None:
        """A model whose pass is left out has its number all the same: who runs the script again counts all of them."""
        self.names.model(root, site)

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
                    tensors[f"g/{key}"] = gradient if gradient.layout == torch.strided else gradient.to_dense()
        kept: list[Any] = []
        for one, entries in state.optimizers:
            optimizer = one()
            if optimizer is not None:
                kept.append([self.names.optimizer(optimizer), entries])
        self._open, self._stale, self._taken, self._tail = True, False, self._taken + 1, 0
        self._devices = {value.device for _, value in state.parameters if value.device.type == "cuda"}
        if self._bounds is not None and self._devices:
            self._waiting = min(self._waiting, self._bounds.device)
        if self._put(Item({"kind": "state", "at": state.at, "step": state.step, "kept": kept}, tensors), state.bytes):
            self._states = [*self._states[-3:], state.at]
        self._state_at, self._state_cost = time.process_time(), state.taken_s

    def _put(self, item: Item, size: int = 0) -> bool:
        item.bytes = size + ENTRY_BYTES
        waiting = self._handed - self._written + item.bytes
        if self._spool.failed or self._over or waiting > self._waiting:
            self._open = False
            return False
        for device in self._devices:
            stream = torch.cuda.current_stream(device)
            self._streams[stream.device_index, stream.stream_id] = stream
        self._handed += item.bytes
        self._tail += size if "at" not in item.told else 0
        self._queue.append(item)
        if waiting > min(FLUSH_BYTES, self._waiting // 4):
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
        self._spool.take(items, self.names, list(self._streams.values()))
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


def record_to_disk(capture: Any, run_dir: Path, limit_bytes: int, share: float | None = None) -> Recording:
    """Of a capture that has just begun. `share`: of the time it may take, with steps left out; None: every step."""
    folder = run_dir / FOLDER
    if share is None:
        tape = DiskTape(folder, limit_bytes, say=partial(capture.core.recorder.note, "warning"))
        return Recording(capture.core, capture.patches, tape)
    tape = DiskTape(folder, limit_bytes, windows=True, bounds=BY_ITSELF)  # what it left out, the report says
    pace = Pace(share, tape.writer_s, lambda: capture.core.budget.trained_s)
    return Recording(capture.core, capture.patches, tape, pace)
