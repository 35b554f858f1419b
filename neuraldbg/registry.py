"""One registry for every sort of plug-in: a decorator inside the tree, an entry point `neuraldbg.<kind>` outside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from neuraldbg.errors import AlreadyRegistered

T = TypeVar("T")


class Registry(Generic[T]):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def keep(item: T) -> T:
            if name in self._items:
                raise AlreadyRegistered(f"two {self.kind}s are called {name!r}: {self._items[name]} and {item}")
            self._items[name] = item
            return item

        return keep

    def copy(self) -> dict[str, T]:
        """What a session works with: later registrations do not reach it."""
        return dict(self._items)

    def load_entry_points(self) -> dict[str, T]:
        """The registered items and those that installed packages offer; twice the same name is an error."""
        items = self.copy()
        for point in entry_points(group=f"neuraldbg.{self.kind}"):
            if point.name in items:
                raise AlreadyRegistered(
                    f"two {self.kind}s are called {point.name!r}: {items[point.name]} and {point.value}"
                )
            items[point.name] = point.load()
        return items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
