"""Rows of the trace as Arrow tables and back, every bit of them; and Arrow tables as Parquet bytes and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import TraceDamaged
from neuraldbg.store.extras import needed
from neuraldbg.store.layout import METADATA_KEY, WORDS, arrow_schema, check_about
from neuraldbg.trace.reader import Chunk
from neuraldbg.trace.tables import TABLES

ROWS_PER_GROUP: Final = 65_536
WHAT: Final = "a Parquet data set"


def arrow_of(chunks: Sequence[Chunk], rank: int, name_of: Callable[[int], str]) -> Any:
    """The rows of chunks of one table, sorted by layer, kind and step; `row` is the number each had."""
    pa = needed("pyarrow", WHAT)
    table = chunks[0].table
    names = TABLES[table].names or ()
    columns = {name: np.concatenate([chunk.column(name) for chunk in chunks]) for name in names}
    rows = np.concatenate([np.arange(chunk.first_row, chunk.end_row, dtype=np.int64) for chunk in chunks])
    layers, place = _layers(columns["site"], name_of)
    order = np.lexsort((columns["step"], columns.get("kind", np.zeros(len(rows), np.uint8)), place))
    arrays = [pa.array(rows[order]), pa.array(np.full(len(rows), rank, np.int32)), _words(pa, place[order], layers)]
    arrays += [_array(pa, columns[name][order]) for name in names]
    arrays += [_coded(pa, columns[name][order], WORDS[name]) for name in names if name in WORDS]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(table))


def _layers(sites: NDArray[np.int32], name_of: Callable[[int], str]) -> tuple[list[str], NDArray[np.int32]]:
    """The names of these sites in order, and for every row the place of its name among them."""
    known, which = np.unique(sites, return_inverse=True)
    named = [name_of(int(site)) for site in known]
    ordered = sorted(set(named))
    place = np.array([ordered.index(name) for name in named], np.int32)
    return ordered, place[which]


def _words(pa: Any, place: NDArray[np.int32], words: list[str]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(place), pa.array(words, pa.string()))


def _coded(pa: Any, codes: NDArray[np.uint8], words: dict[int, str]) -> Any:
    """The words of codes; one that this version does not know stays without."""
    listed = sorted(words)
    place = np.searchsorted(listed, codes).astype(np.int32)
    unknown = ~np.isin(codes, listed)
    place[unknown] = 0
    return pa.DictionaryArray.from_arrays(
        pa.array(place, mask=unknown), pa.array([words[code] for code in listed], pa.string())
    )


def _array(pa: Any, column: NDArray[Any]) -> Any:
    if column.dtype.kind == "V":
        size = column.dtype.itemsize
        data = pa.py_buffer(np.ascontiguousarray(column).tobytes())
        return pa.Array.from_buffers(pa.binary(size), len(column), [None, data])
    return pa.array(column.view("<i8") if column.dtype == np.dtype("<u8") else column)


def facts_of(lines: Sequence[bytes], rank: int, first_row: int) -> Any:
    """JSON lines of facts as a table."""
    pa = needed("pyarrow", WHAT)
    texts = [line.decode("utf-8", "backslashreplace") for line in lines]
    rows = np.arange(first_row, first_row + len(texts), dtype=np.int64)
    ranks = np.full(len(texts), rank, np.int32)
    columns = [
        pa.array(rows),
        pa.array(ranks),
        pa.array(map(_type_of, texts), pa.string()),
        pa.array(texts, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=arrow_schema("facts"))


def _type_of(text: str) -> str | None:
    try:
        fact = json.loads(text)
    except ValueError:
        return None
    kind = fact.get("type") if isinstance(fact, dict) else None
    return kind if isinstance(kind, str) else None


def rows_of(arrow: Any, table: str) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """The rows of an Arrow table in the order they were recorded, and the number of each."""
    numbers = arrow["row"].to_numpy()
    order = np.argsort(numbers, kind="stable")
    found = np.empty(len(order), TABLES[table])
    for name in TABLES[table].names or ():
        found[name] = _numpy(arrow[name], TABLES[table][name])[order]
    return numbers[order], found


def _numpy(column: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    whole = column.combine_chunks()
    if dtype.kind != "V":
        found: NDArray[Any] = whole.to_numpy(zero_copy_only=False)
        return found.view(dtype) if found.dtype.itemsize == dtype.itemsize else found.astype(dtype)
    start = whole.offset * dtype.itemsize
    return np.frombuffer(whole.buffers()[1], dtype, len(whole), start)


def parquet_bytes(arrow: Any) -> bytes:
    """A Parquet file. Floats get no dictionary: that would make one of all NaN, and of 0.0 and -0.0."""
    pa, pq = needed("pyarrow", WHAT), needed("pyarrow.parquet", WHAT)
    floats = [field.name for field in arrow.schema if pa.types.is_floating(field.type)]
    whole = [field.name for field in arrow.schema if field.name not in floats and not pa.types.is_int64(field.type)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        arrow,
        sink,
        row_group_size=ROWS_PER_GROUP,
        compression="zstd",
        use_dictionary=whole,
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT")
        | dict.fromkeys(_integers(pa, arrow), "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    )
    return bytes(sink.getvalue())


def _integers(pa: Any, arrow: Any) -> list[str]:
    return [field.name for field in arrow.schema if pa.types.is_int64(field.type)]


def parquet_table(data: bytes, table: str, where: str, columns: Sequence[str] | None = None) -> Any:
    """The Arrow table of a Parquet file of ours, or some of its columns; TraceDamaged where it is torn, damaged or
    somebody else's."""
    pa, pq = needed("pyarrow", WHAT), needed("pyarrow.parquet", WHAT)
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        told = json.loads((file.schema_arrow.metadata or {}).get(METADATA_KEY, b"null"))
        check_about(told, where)
        if told.get("table") != table:
            raise TraceDamaged(f"{where} holds {told.get('table')}, not {table}")
        _check_columns(file.schema_arrow, table, where)
        return file.read(columns=None if columns is None else list(columns))
    except (pa.ArrowException, OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise TraceDamaged(f"{where} is torn or no Parquet file ({text}); copy it again") from error


def _check_columns(schema: Any, table: str, where: str) -> None:
    wanted = [field for field in arrow_schema(table) if not field.name.endswith("_name")]
    wrong = [field.name for field in wanted if field.name not in schema.names]
    wrong += [f.name for f in wanted if f.name in schema.names and not schema.field(f.name).type.equals(f.type)]
    if wrong:
        raise TraceDamaged(f"{where} lacks the columns of {table}, or has them of another type: {', '.join(wrong)}")
