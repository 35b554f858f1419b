"""With which random numbers the workers of a loader begin: two that begin alike draw the same ones.

Every worker sends one short line over a pipe, after its first batch: hashes of its generators as the training's own
`worker_init_fn` has left them, and which of them that batch has drawn from. Nothing is seeded, drawn or changed.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from hashlib import blake2b
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.core import Core

MOST = 512  # workers that are told of
EPOCHS = 2  # of each loader
_NEEDED = ("data_queue", "init_fn", "worker_id")


class WorkerSeeds:
    """Only workers that are forked can be asked; of those that are spawned nothing is known."""

    def __init__(self, core: Core, patches: Any) -> None:
        self.core = core
        self.loaders: dict[int, int] = {}  # beginning of a loader -> its site
        self.begun = 0
        self._pipe: tuple[int, int] | None = None
        self._rest = b""
        self._waiting: list[dict[str, Any]] = []  # from workers of a loader that is not known yet
        self._lock = threading.Lock()
        self._told = 0
        loop = torch_worker._worker_loop
        names = list(inspect.signature(loop).parameters)
        if hasattr(os, "fork") and all(name in names for name in _NEEDED):
            patches.replace(torch_worker, "_worker_loop", self._watched(loop, [names.index(name) for name in _NEEDED]))

    def loader_begins(self, loader: Any) -> None:
        """Before its workers are started."""
        self.begun += 1
        if self._pipe is None and attempt(lambda: loader.num_workers) and self._told < MOST:
            writer = self.core.recorder.writer
            if writer is not None:
                self._pipe = reading, writing = os.pipe()
                for end in (reading, writing):
                    os.set_blocking(end, False)
                writer.add_source(self.core.guard.shield("seeds of workers")(self._listen))

    def loader_began(self, site: int, times: int) -> None:
        if times <= EPOCHS:
            self.loaders[self.begun] = site

    def _watched(self, original: Callable[..., Any], places: list[int]) -> Callable[..., Any]:
        @wraps(original)
        def _worker_loop(*args: Any, **kwargs: Any) -> Any:
            pipe, begun = self._pipe, self.begun
            if pipe is not None and not kwargs:
                args = attempt(lambda: _with_probe(args, places, pipe[1], begun)) or args
            return original(*args, **kwargs)

        return _worker_loop

    # -- in the training process, from the thread that writes ----------------------------------------------------------

    def _listen(self, _: Any = None) -> None:
        with self._lock:
            if self._pipe is None:
                return
            with suppress(BlockingIOError):
                self._rest += os.read(self._pipe[0], 65536)
            *lines, self._rest = self._rest.split(b"\n")
            told, self._waiting = [*self._waiting, *map(json.loads, lines)], []
            for one in told:
                self._tell(one)

    def _tell(self, one: dict[str, Any]) -> None:
        site = self.loaders.get(one["begun"])
        if site is not None and self._told < MOST:
            self._told += 1
            self.core.recorder.fact("worker", site=site, **one)
        elif site is None and one["begun"] == self.begun:
            self._waiting.append(one)

    def close(self) -> None:
        self._listen()
        with self._lock:
            for end in self._pipe or ():
                os.close(end)
            self._pipe = None


def _with_probe(args: tuple[Any, ...], places: list[int], pipe: int, begun: int) -> tuple[Any, ...]:
    """In the worker: look once after its own `worker_init_fn`, and once after its first batch."""
    at_queue, at_init, at_worker = places
    queue, init, began = args[at_queue], args[at_init], dict[str, str]()

    def init_fn(worker: int) -> None:
        if init is not None:
            init(worker)
        attempt(lambda: began.update(_generators()))

    put = queue.put

    def first_put(*item: Any, **how: Any) -> None:
        put(*item, **how)
        with suppress(AttributeError):  # another debugger inside of this one was quicker
            del queue.put
        attempt(tell)

    def tell() -> None:
        drawn = [name for name, state in _generators().items() if began.get(name) != state]
        told = {"begun": begun, "worker": args[at_worker], "generators": began, "drawn": drawn}
        os.write(pipe, json.dumps(told).encode() + b"\n")

    queue.put = first_put
    return tuple(init_fn if at == at_init else each for at, each in enumerate(args))


def _generators() -> dict[str, str]:
    numpy = sys.modules.get("numpy")
    states = {"python": repr(random.getstate()).encode(), "torch": torch.get_rng_state().numpy().tobytes()}
    if numpy is not None:
        _, keys, position, *_ = numpy.random.get_state()
        states["numpy"] = keys.tobytes() + str(position).encode()
    return {name: blake2b(state, digest_size=8).hexdigest() for name, state in states.items()}
