"""What a query answers with: columns as numpy arrays, also readable as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import NDArray


class Rows:
    """Columns of equal length: `rows.l2` or `rows["l2"]`, `rows.steps`; `records()` gives one dict per row.

    Like a table: iterating gives the names of the columns, `len` the number of rows.
    """

    def __init__(self, columns: dict[str, NDArray[Any]], *, name_of: Callable[[int], str]) -> None:
        self._columns = columns
        self._name_of = name_of

    def __getattr__(self, name: str) -> NDArray[Any]:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no column {name!r}; there are {', '.join(self.keys())}") from None

    def __getitem__(self, name: str) -> NDArray[Any]:
        columns: dict[str, NDArray[Any]] = self.__dict__.get("_columns", {})  # not there yet while being unpickled
        return columns["step" if name == "steps" else name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __contains__(self, name: object) -> bool:
        return name in self._columns or name == "steps"

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(self._columns)}>"

    def keys(self) -> list[str]:
        return list(self.__dict__.get("_columns", {}))

    def items(self) -> list[tuple[str, NDArray[Any]]]:
        return list(self._columns.items())

    def values(self) -> list[NDArray[Any]]:
        return list(self._columns.values())

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    @property
    def layers(self) -> list[str]:
        """The canonical name of every row's site."""
        names = {site: self._name_of(site) for site in set(self._columns["site"].tolist())}
        return [names[site] for site in self._columns["site"].tolist()]

    def records(self) -> Iterator[dict[str, Any]]:
        """One dict per row, with the layer's name."""
        columns: dict[str, list[Any]] = {name: column.tolist() for name, column in self._columns.items()}
        if "site" in columns:
            columns["layer"] = self.layers
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))
