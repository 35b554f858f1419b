"""Which of the tensors that were looked at still live, and which pile up from step to step."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any, Final, NamedTuple

PILE: Final = 8  # steps whose tensors all still live: then somebody keeps them
MOST_FOLLOWED: Final = 10_000  # tensors
MOST_NAMES: Final = 10_000
Key = tuple[str, str | None]


class _Alive(NamedTuple):
    ref: weakref.ref[Any]
    key: Key
    size: int
    step: int


class Living:
    """Weak references only: it keeps nothing alive. What lives is what some Python object still holds."""

    def __init__(self) -> None:
        self._alive: dict[int, _Alive] = {}
        self._seen: dict[Key, int] = {}
        self._dead: deque[int] = deque()  # whatever thread a tensor goes in
        self._lock = threading.RLock()
        self.not_followed = 0

    def note(self, name: str, layer: str | None, tensor: Any, size: int, step: int) -> None:
        number, key = id(tensor), (name, layer)
        with self._lock:
            self._bury()
            known = self._alive.get(number)
            if known is not None and known.ref() is tensor:
                return
            if len(self._alive) >= MOST_FOLLOWED or (key not in self._seen and len(self._seen) >= MOST_NAMES):
                self.not_followed += 1
                return
            try:
                ref = weakref.ref(tensor, lambda _, number=number: self._dead.append(number))  # type: ignore[misc]
            except TypeError:  # a list or a number
                self.not_followed += 1
                return
            self._alive[number] = _Alive(ref, key, size, step)
            self._seen[key] = self._seen.get(key, 0) + 1

    def _bury(self) -> None:
        while self._dead:
            number = self._dead.popleft()
            known = self._alive.get(number)
            if known is not None and known.ref() is None:
                del self._alive[number]

    def report(self) -> dict[str, Any]:
        with self._lock:
            self._bury()
            alive, seen = list(self._alive.values()), dict(self._seen)
        groups: dict[Key, list[_Alive]] = {}
        for one in alive:
            groups.setdefault(one.key, []).append(one)
        tensors = [
            {"name": name, "layer": layer, "alive": len(held), "bytes": sum(one.size for one in held)}
            for (name, layer), held in groups.items()
        ]
        leaks = [leak for key, held in groups.items() if (leak := _piled_up(key, held, seen[key])) is not None]
        return {
            "alive_tensors": len(alive),
            "alive_bytes": sum(one.size for one in alive),
            "tensors": sorted(tensors, key=lambda one: -int(str(one["bytes"]))),
            "leaks": sorted(leaks, key=lambda one: -one["bytes"]),
            "not_followed": self.not_followed,
        }


def _piled_up(key: Key, held: list[_Alive], seen: int) -> dict[str, Any] | None:
    """Tensors of many different steps that all still live, where hardly any has gone."""
    steps = sorted({one.step for one in held})
    if len(steps) < PILE or len(held) < 0.9 * seen:
        return None
    size = sum(one.size for one in held)
    return {
        "name": key[0],
        "layer": key[1],
        "alive": len(held),
        "bytes": size,
        "bytes_per_step": size / (steps[-1] - steps[0] + 1),
        "first_step": steps[0],
        "last_step": steps[-1],
    }
