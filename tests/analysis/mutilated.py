"""Recorded runs with parts missing: rows and facts left out, numbers turned into NaN, runs cut short."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.trace import Trace, TraceWriter, open_trace
from neuraldbg.trace.tables import TABLES

ADDED = ("type", "rank")


class Recording:
    """Everything a trace holds, taken out of its files. Not a dataclass: Hypothesis would print all of it."""

    def __init__(self, name: str, tables: dict[str, NDArray[np.void]], facts: list[dict[str, Any]]) -> None:
        self.name, self.tables, self.facts = name, tables, facts

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @classmethod
    def of(cls, trace: Trace, name: str) -> Recording:
        tables = {}
        for table, dtype in TABLES.items():
            columns = trace.table(table)
            rows = np.zeros(len(columns["step"]), dtype)
            for column in dtype.names or ():
                rows[column] = columns[column]
            tables[table] = rows
        return cls(name, tables, copy.deepcopy(trace.facts()))

    def write(self, folder: Path) -> Trace:
        with TraceWriter(folder, rank=0, threaded=False) as writer:
            for fact in self.facts:
                writer.fact(fact["type"], **{key: value for key, value in fact.items() if key not in ADDED})
            for table, rows in self.tables.items():
                writer.append(table, rows)
        return open_trace(folder)


Change = Callable[[Recording, random.Random], Recording]


def without_facts(one: Recording, chance: random.Random) -> Recording:
    """Some sorts of facts were never written."""
    kinds = sorted({fact["type"] for fact in one.facts})
    gone = set(chance.sample(kinds, chance.randint(min(1, len(kinds)), len(kinds))))
    return Recording(one.name, one.tables, [fact for fact in one.facts if fact["type"] not in gone])


def fewer_facts(one: Recording, chance: random.Random) -> Recording:
    return Recording(one.name, one.tables, [fact for fact in one.facts if chance.random() < 0.6])


def fewer_rows(one: Recording, chance: random.Random) -> Recording:
    kept = {name: rows[[chance.random() < 0.5 for _ in rows]] for name, rows in one.tables.items()}
    return Recording(one.name, kept, one.facts)


def without_tables(one: Recording, chance: random.Random) -> Recording:
    gone = chance.sample(sorted(one.tables), chance.randint(1, len(one.tables)))
    return Recording(one.name, {n: r[:0] if n in gone else r for n, r in one.tables.items()}, one.facts)


def one_step(one: Recording, chance: random.Random) -> Recording:
    last = chance.randint(0, 2)
    cut = {name: rows[rows["step"] <= last] for name, rows in one.tables.items()}
    return Recording(one.name, cut, [fact for fact in one.facts if fact.get("step", 0) <= last])


def not_numbers(one: Recording, chance: random.Random) -> Recording:
    """Every float of some rows is NaN or infinite."""
    hurt = {}
    for name, rows in one.tables.items():
        rows = rows.copy()
        for column in rows.dtype.names or ():
            if rows.dtype[column].kind == "f" and len(rows):
                at = [chance.random() < 0.3 for _ in rows]
                rows[column][at] = chance.choice([np.nan, np.inf, -np.inf, 0.0, 1e300])
        hurt[name] = rows
    return Recording(one.name, hurt, one.facts)


def unknown_fields(one: Recording, chance: random.Random) -> Recording:
    """Numbers that could not be measured are None in the facts."""
    facts = copy.deepcopy(one.facts)
    for fact in facts:
        for key, value in fact.items():
            if isinstance(value, float) and chance.random() < 0.3:
                fact[key] = None
    return Recording(one.name, one.tables, facts)


CHANGES: tuple[Change, ...] = (
    without_facts,
    fewer_facts,
    fewer_rows,
    without_tables,
    one_step,
    not_numbers,
    unknown_fields,
)
