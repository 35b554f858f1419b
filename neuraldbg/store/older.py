"""Some steps of older parts, read by DuckDB: it goes through the files and hands over only the rows that are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import TraceDamaged
from neuraldbg.store.arrow import rows_of
from neuraldbg.store.extras import needed
from neuraldbg.store.manifest import Part
from neuraldbg.store.places import Place
from neuraldbg.trace.tables import TABLES

WHAT = "reading some steps of a Parquet data set"


def count_rows(place: Place, parts: Sequence[Part], apart: int) -> int:
    """How many rows of these parts are at every so many steps."""
    with _recorded(place, parts) as ask:
        return int(ask(f"SELECT count(*) FROM recorded WHERE step % {apart} = 0").fetchall()[0][0])


def rows_at(place: Place, table: str, parts: Sequence[Part], apart: int) -> Iterator[NDArray[np.void]]:
    """The rows at every so many steps, part by part, in the order of their recording."""
    wanted = ", ".join(f'"{name}"' for name in ("row", *(TABLES[table].names or ())))
    for part in parts:
        with _recorded(place, [part]) as ask:
            found = ask(f"SELECT {wanted} FROM recorded WHERE step % {apart} = 0")
            arrow = (getattr(found, "to_arrow_table", None) or found.fetch_arrow_table)()  # its name in older versions
        yield rows_of(arrow, table)[1]


@contextmanager
def _recorded(place: Place, parts: Sequence[Part]) -> Iterator[Any]:
    engine, datasets = needed("duckdb", WHAT), needed("pyarrow.dataset", WHAT)
    pa = needed("pyarrow", WHAT)
    files = [place.at(part.file) for part in parts]
    try:
        with engine.connect() as connection:
            rows = datasets.dataset(files, filesystem=place.filesystem, format="parquet")
            connection.register("recorded", rows)
            yield connection.sql
    except (engine.Error, pa.ArrowException, OSError) as error:
        names = ", ".join(part.file for part in parts[:3])
        text = " ".join(str(error).split())
        raise TraceDamaged(f"{place.shown}: {names} cannot be read ({text}); copy it again") from error
