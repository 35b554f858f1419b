"""A table keyed by what an object is, not by what it claims to equal; entries go when their objects do."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from neuraldbg.capture.kernels import frameless

V = TypeVar("V")


class Entries(Generic[V]):
    """What is asked for at every step, and put in for every layer and parameter; C has the same."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}

    def get(self, key: Any) -> V | None:
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def pairs(self, keys: list[Any]) -> list[tuple[V, Any]] | None:
        """(value, key) of each; None where one of them has no value."""
        found = [(value, key) for key in keys if (value := self.get(key)) is not None]
        return found if len(found) == len(keys) else None

    def __setitem__(self, key: Any, value: V) -> None:
        number = id(key)

        def forget(ref: weakref.ref[Any]) -> None:
            entry = self._entries.get(number)
            if entry is not None and entry[0] is ref:
                del self._entries[number]

        self._entries[number] = (weakref.ref(key, forget), value)

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return len(self._entries)


if TYPE_CHECKING or frameless.Identities is None:
    Looked = Entries
else:

    class Looked(frameless.Identities, Generic[V]):
        pass


class IdentityTable(Looked[V]):
    """Like a WeakKeyDictionary, for keys with an `__eq__` or `__hash__` of their own (tensors, users' modules)."""

    def __getitem__(self, key: Any) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def pop(self, key: Any) -> None:
        self._entries.pop(id(key), None)

    def items(self) -> Iterator[tuple[Any, V]]:
        for ref, value in list(self._entries.values()):
            key = ref()
            if key is not None:
                yield key, value

    def values(self) -> Iterator[V]:
        return (value for _, value in self.items())
