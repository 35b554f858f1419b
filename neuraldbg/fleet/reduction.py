"""Rows to groups: the one operation all analyses of many runs are made of. Integers, minima and maxima only, which come
out the same whatever the order and the cutting of the rows, so that every engine gives the same answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.store.extras import needed

Columns = dict[str, NDArray[Any]]
LAYER_MARK: Final = "layer_mark"  # a number for the name of the layer, the same on every machine
LOOSE_ROWS: Final = 1_000_000  # that wait before they are made into groups again
_OPERATIONS: Final[dict[str, Callable[..., NDArray[Any]]]] = {
    "min": np.minimum.reduceat,
    "max": np.maximum.reduceat,
    "sum": np.add.reduceat,  # of integers, modulo 2^64
    "fmin": np.fmin.reduceat,  # of floats; nan where all are
}
_TYPES: Final = {
    "layer": "string",
    "kind": "int16",
    "rank": "int32",
    "slot": "int32",
    "octave": "int32",
    "value": "float64",
}


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What the outline of a job leaves to look at: steps in order, by run, and what it knows already."""

    steps: Mapping[int, NDArray[np.int64]]
    known: Any = None


@dataclass(frozen=True, slots=True)
class Job:
    """What one analysis reads of a table, how its rows are grouped, and what follows from the groups.

    Where the groups would be as many as the rows, an outline goes first: few groups, from which follows at which steps
    there is something to see. Only the rows of those become groups of the job itself.
    """

    name: str
    table: str
    columns: tuple[str, ...]  # that are read
    keys: tuple[str, ...]  # rows that agree in these are one group
    operations: Mapping[str, str]  # value: min, max, sum, fmin
    extract: Callable[[Columns], Columns]  # keys and values of the rows that matter
    finish: Callable[..., Any]  # of the groups of all runs, their names and, after an outline, what it has narrowed
    kinds: tuple[int, ...] = ()  # only rows of these; none: all
    outline: Job | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*self.keys, *self.operations)

    def schema(self) -> Any:
        pa = needed("pyarrow", "neural analyze")
        return pa.schema([(name, getattr(pa, _TYPES.get(name, "int64"))()) for name in self.outputs])

    def nothing(self) -> Columns:
        """No groups at all."""
        kinds = {"layer": object, "value": np.float64}
        return {name: np.empty(0, kinds.get(name, np.int64)) for name in self.outputs}


def columns_of(batch: Any) -> Columns:
    """The columns of an Arrow batch or table; names of layers as an array of objects, and as numbers."""
    found: Columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        whole = column.combine_chunks() if hasattr(column, "chunks") else column
        if name == "layer":
            found[name], found[LAYER_MARK] = _names(whole)
        else:
            found[name] = whole.to_numpy(zero_copy_only=False)
    return found


def _names(whole: Any) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    pa = needed("pyarrow", "neural analyze")
    encoded = whole if pa.types.is_dictionary(whole.type) else whole.cast(pa.string()).dictionary_encode()
    words = encoded.dictionary.to_pylist()
    if not words:
        return np.empty(0, object), np.empty(0, np.uint64)
    which = encoded.indices.to_numpy(zero_copy_only=False)
    marks = [int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little") for word in words]
    return np.array(words, dtype=object)[which], np.array(marks, np.uint64)[which]


def reduced(job: Job, columns: Columns) -> Columns:
    """One row per group, ordered by its keys."""
    keys = [columns[name] for name in job.keys]
    if not len(keys[0]):
        return {name: columns[name] for name in job.outputs}
    ranks = [numbered(key) for key in keys]
    order = np.lexsort(ranks[::-1])
    new = np.zeros(len(order), bool)
    new[0] = True
    for rank in ranks:
        ordered = rank[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(new)
    found = {name: key[order][starts] for name, key in zip(job.keys, keys, strict=True)}
    with np.errstate(over="ignore"):
        found |= {name: _OPERATIONS[how](columns[name][order], starts) for name, how in job.operations.items()}
    return found


def numbered(key: NDArray[Any]) -> NDArray[Any]:
    """Numbers in the order of the values. Words are hashed, not sorted: there are few, and of each very many."""
    if key.dtype != object:
        return key
    pa = needed("pyarrow", "neural analyze")
    encoded = pa.array(key, pa.string()).dictionary_encode()
    words = encoded.dictionary.to_pylist()
    place = {word: at for at, word in enumerate(sorted(words))}
    number = np.array([place[word] for word in words], np.int32)
    found: NDArray[Any] = number[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


def groups_of(job: Job, batch: Any, steps: NDArray[np.int64] | None = None) -> Columns:
    """The groups of one Arrow batch; with `steps`, of its rows at those only."""
    columns = columns_of(batch)
    if job.kinds:
        columns = _only(columns, np.isin(columns["kind"], job.kinds))
    if steps is not None:
        columns = _only(columns, np.isin(columns["step"], steps))
    return reduced(job, job.extract(columns))


def _only(columns: Columns, keep: NDArray[np.bool_]) -> Columns:
    return {name: column[keep] for name, column in columns.items()}


def batch_of(job: Job, groups: Columns) -> Any:
    """Groups as an Arrow batch, for the way from a worker to us."""
    pa = needed("pyarrow", "neural analyze")
    schema = job.schema()
    arrays = [pa.array(groups[field.name], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Gathering:
    """Groups of many batches. They are made one again before many have come together: memory goes with the groups, not
    with the rows."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._found: list[Columns] = []
        self._rows, self._most = 0, LOOSE_ROWS

    def add(self, groups: Columns) -> None:
        rows = len(groups[self._job.keys[0]])
        if rows:
            self._found.append(groups)
            self._rows += rows
        if self._rows > self._most:
            self._found = [self.groups()]
            self._rows = len(self._found[0][self._job.keys[0]])
            self._most = max(LOOSE_ROWS, 2 * self._rows)

    def groups(self) -> Columns:
        if not self._found:
            return self._job.nothing()
        whole = {name: np.concatenate([one[name] for one in self._found]) for name in self._job.outputs}
        return reduced(self._job, whole)
