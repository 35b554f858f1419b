"""Every operation of a run in order, with hashes of what went in and came out: what two runs are compared by."""

from __future__ import annotations

import os
import sys
import zlib
from importlib import import_module
from typing import Any, TextIO

from neuraldbg.capture.torch.frames import Frames
from neuraldbg.capture.torch.stats import digest_of

MOST = 400_000  # operations of one run
MEMORY = "empty empty_like empty_strided new_empty new_empty_strided resize_"  # that nobody has written to yet
VIEWS = "detach view _unsafe_view t alias"
ARRIVING = "set_"  # from workers of a DataLoader, in whatever order they are done
SKIPPED = frozenset(f"aten::{name}" for name in f"{MEMORY} {VIEWS} {ARRIVING}".split())


def log_operations(path: str) -> Any:
    """Write `step, name, hash in, hash out, source` for every operation from now on; `.close()` ends it."""
    torch: Any = sys.modules["torch"]
    base = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Log(base):  # type: ignore[misc, valid-type]
        def __init__(self, file: TextIO) -> None:
            super().__init__()
            self.file, self.number, self.step = file, 0, 0
            self.frames = Frames()
            self.process = os.getpid()  # a worker of a DataLoader is a copy of us, with the same file

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = func.name()
            if self.number >= MOST or name.partition(".")[0] in SKIPPED or os.getpid() != self.process:
                return func(*args, **kwargs)
            entered = _hash(torch, (args, kwargs))
            result = func(*args, **kwargs)
            self.number += 1
            print(self.step, name, entered, _hash(torch, result), self.frames.line() or "-", sep="\t", file=self.file)
            return result

        def close(self) -> None:
            self.__exit__(None, None, None)
            self.file.close()

    mode = Log(open(path, "w", encoding="utf-8"))  # noqa: SIM115  closed with the mode
    mode.__enter__()
    return mode


def _hash(torch: Any, value: Any) -> int:
    """Of all tensors and numbers in nested arguments, in order."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            return digest_of(value if value.device.type == "cpu" else value.detach().cpu())
    if isinstance(value, tuple | list):
        total = 0
        for each in value:
            total = (total * 1099511628211 + _hash(torch, each)) & ((1 << 64) - 1)
        return total
    if isinstance(value, dict):
        return _hash(torch, list(value.values()))
    return zlib.crc32(repr(value).encode()) if isinstance(value, int | float) else 0
