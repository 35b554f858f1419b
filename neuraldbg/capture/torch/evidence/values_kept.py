"""Variables of the script that hold more and more: looked for only once memory has grown, and rarely then."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.resources import device_memory, host_allocated_bytes, rss_bytes
from neuraldbg.capture.torch.core import RARELY, now_ns
from neuraldbg.capture.torch.growing import growing_line
from neuraldbg.capture.torch.in_sight import CONTAINERS, Files, held_by_the_user

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

CLOSELY: Final = 256  # updates after each of which memory is looked at; later now and then
FIRST: Final = 10  # updates until what is there counts as the beginning
GREW: Final = 2 * 2**20  # bytes since then that make us look
LEAST: Final = 2**18  # bytes by which a holder must have grown
LOOKED_AT: Final = 2_000  # items of a container
MOST: Final = 5
Size = tuple[int, int, str]  # items, bytes, what they are


class KeptValues:
    """A fact `values_kept` names the containers that grew since the tenth update, with the line that fills them."""

    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._data_sets = capture.batches.data_sets
        self._begin: dict[str, Size] = {}
        self._at_begin = 0
        self._next = 2 * FIRST
        self.core.take_part("update_done", "memory in use", self._updated)

    def _updated(self, *_: Any) -> None:
        recorder, step = self.core.recorder, self.core.recorder.step
        if step > CLOSELY and step % RARELY and not self.core.looking:
            return
        used = host_allocated_bytes()
        if used is not None:
            recorder.scalar("host_allocated_bytes", float(used))
        on_device = device_memory()
        for name, value in (on_device or {}).items():
            recorder.scalar(f"device_{name}_bytes", float(value))
        total = (on_device or {}).get("allocated", 0) + (used if used is not None else rss_bytes() or 0)
        if step == FIRST:
            self._begin, self._at_begin = self._survey(), total
        elif step >= self._next and self._at_begin and total - self._at_begin > GREW:
            self._next = 2 * step
            start = now_ns()
            self._write()
            self.core.budget.set_aside(now_ns() - start)

    def _survey(self) -> dict[str, Size]:
        return {name: size for name, _, _, size in self._containers()}

    def _containers(self) -> Iterator[tuple[str, Any, Files, Size]]:
        for files, where, what in held_by_the_user(self.core.recorder.frames, self._data_sets()):
            size = attempt(partial(_size_of, what))
            if size is not None:
                yield where, what, files, size

    def _write(self) -> None:
        holders = []
        for name, value, files, (items, size, what) in self._containers():
            before = self._begin.get(name, (0, 0, ""))
            if items > before[0] and size - before[1] >= LEAST:
                source = attempt(partial(growing_line, self.core.recorder.frames, files, name))
                grown = {"grew_by": size - before[1], "keeps": items, "what": what, "source": source}
                holders.append({"name": name, "kind": type(value).__name__, "bytes": size, **grown})
        holders.sort(key=lambda one: -one["grew_by"])
        self.core.recorder.fact("values_kept", holders=holders[:MOST])


def _size_of(value: Any) -> Size | None:
    """A container's items and their bytes; None for anything else."""
    if not isinstance(value, CONTAINERS):
        return None
    count = len(value)
    stride = max(count // LOOKED_AT, 1)
    items = value.values() if isinstance(value, dict) else value
    looked = list(islice(items, 0, None, stride))
    sizes = [_bytes_of(item, 0) for item in looked]
    total = sum(size for size, _ in sizes)
    kinds = [kind for _, kind in sizes if kind]
    what = max(set(kinds), key=kinds.count) if kinds else "objects"
    return count, int(total * count / max(len(looked), 1)), what


def _bytes_of(value: Any, depth: int) -> tuple[int, str]:
    if isinstance(value, Tensor):
        storage = attempt(value.untyped_storage)
        return (0 if storage is None else int(storage.nbytes())), "tensors"
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size, "arrays"
    if isinstance(value, bytes | bytearray | str):
        return len(value), "texts"
    if depth < 2 and isinstance(value, list | tuple | dict | deque | set):
        inner = [_bytes_of(item, depth + 1) for item in islice(_items(value), 64)]
        scale = len(value) / max(len(inner), 1)
        return int(sum(each for each, _ in inner) * scale), next((kind for _, kind in inner if kind), "")
    return 32, ""  # a number or a small object


def _items(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value)
