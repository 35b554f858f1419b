"""The bytes of a trace file: one self-describing header, then chunks of columns, each under its own checksum.

`docs/trace-format.md` tells the same in words. Nothing here opens a file.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.trace.tables import CALL_CODE, KIND_CODE, PHASE_CODE, TABLE_CODE, TABLES

MAJOR: Final = 1  # a reader refuses a larger one
MINOR: Final = 1  # 1: histograms; a reader copes with any: columns and tables may be added at the end
FILE_MAGIC: Final = b"NDTRACE\n"
CHUNK_MAGIC: Final = b"CHNK"
FACTS_CODE: Final = TABLE_CODE["facts"]
ALIGN: Final = 8

# magic, major, minor, length of the JSON schema, crc32 of all the others and the schema, reserved
FILE_HEADER: Final = struct.Struct("<8sHHIII")
# magic, table code, flags, rows, crc32, payload bytes, number of the first row, step range, seq range
CHUNK_HEADER: Final = struct.Struct("<4sHHIIQqqqqq")
_CRC_AT: Final = 12


class HeaderError(ValueError):
    """Bytes that do not start a trace file; the text says why."""


class NewerVersionError(ValueError):
    """A trace of a later major version."""


def padded(size: int) -> int:
    return -size % ALIGN + size


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each column of a table lies in a chunk of `rows` rows."""

    table: str
    columns: tuple[tuple[str, np.dtype[Any]], ...]

    def offsets(self, rows: int) -> tuple[dict[str, int], int]:
        """Offset of every column from the start of the payload, and the payload's size."""
        at, places = 0, {}
        for name, dtype in self.columns:
            places[name] = at
            size = rows * dtype.itemsize
            at += -size % ALIGN + size
        return places, at


def layout_of(table: str) -> Layout:
    dtype = TABLES[table]
    return Layout(table, tuple((name, dtype[name]) for name in dtype.names or ()))


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What a file says of itself."""

    major: int
    minor: int
    size: int
    about: Mapping[str, Any]
    layouts: Mapping[int, Layout]  # by table code


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    code: int
    rows: int
    crc: int
    payload_bytes: int
    first_row: int
    step_min: int
    step_max: int
    seq_min: int
    seq_max: int


def schema() -> dict[str, Any]:
    """The tables and the codes of this version, as written into every file."""
    tables = {
        name: {"code": TABLE_CODE[name], "columns": [[column, dtype[column].str] for column in dtype.names or ()]}
        for name, dtype in TABLES.items()
    }
    tables["facts"] = {"code": FACTS_CODE, "columns": []}
    codes = {
        "kind": {kind.value: code for kind, code in KIND_CODE.items()},
        "phase": {phase.value: code for phase, code in PHASE_CODE.items()},
        "call": {call.value: code for call, code in CALL_CODE.items()},
    }
    return {"format": "neuraldbg.trace", "tables": tables, "codes": codes}


def encode_file_header(**about: Any) -> bytes:
    text = json.dumps({**schema(), **about}, separators=(",", ":")).encode()
    text += b" " * (padded(FILE_HEADER.size + len(text)) - FILE_HEADER.size - len(text))
    bare = FILE_HEADER.pack(FILE_MAGIC, MAJOR, MINOR, len(text), 0, 0)
    return FILE_HEADER.pack(FILE_MAGIC, MAJOR, MINOR, len(text), zlib.crc32(text, zlib.crc32(bare)), 0) + text


def decode_file_header(data: bytes | memoryview) -> FileHeader | None:
    """The header, or None while it is not complete yet."""
    if bytes(data[: len(FILE_MAGIC)]) != FILE_MAGIC[: len(data)]:
        raise HeaderError("does not begin like a trace file")
    if len(data) < FILE_HEADER.size:
        return None
    _, major, minor, length, crc, reserved = FILE_HEADER.unpack(data[: FILE_HEADER.size])
    size = FILE_HEADER.size + length
    text = bytes(data[FILE_HEADER.size : size])
    intact = len(text) == length and crc == zlib.crc32(
        text, zlib.crc32(FILE_HEADER.pack(FILE_MAGIC, major, minor, length, 0, reserved))
    )
    if not intact:
        if len(text) < length and length < 1 << 24:
            return None
        raise HeaderError("its header fails the checksum")
    if major > MAJOR:
        raise NewerVersionError(f"format {major}.{minor}")
    try:
        about = json.loads(text)
        layouts = {
            int(table["code"]): Layout(name, tuple((column, np.dtype(kind)) for column, kind in table["columns"]))
            for name, table in about["tables"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeaderError(f"its schema cannot be read ({error!r})") from error
    return FileHeader(major, minor, size, about, layouts)


def decode_chunk_header(data: bytes | memoryview) -> ChunkHeader | None:
    """The header of a chunk, or None where these bytes are not one. The checksum is verified separately."""
    magic, code, _flags, rows, crc, size, first, *ranges = CHUNK_HEADER.unpack(data)
    return ChunkHeader(code, rows, crc, size, first, *ranges) if magic == CHUNK_MAGIC else None


def intact(chunk: memoryview, crc: int) -> bool:
    """Does a whole chunk (header and payload) match its checksum?"""
    head = bytearray(chunk[: CHUNK_HEADER.size])
    head[_CRC_AT : _CRC_AT + 4] = b"\0\0\0\0"
    return zlib.crc32(chunk[CHUNK_HEADER.size :], zlib.crc32(head)) == crc


class ChunkEncoder:
    """Turns blocks of rows into the bytes of one chunk, in a buffer that is used again."""

    def __init__(self, room: int = 0) -> None:
        self._buffer = np.full(room, 0, np.uint8)  # written to: the system hands memory out page by page, at a price
        self._layouts = {table: layout_of(table) for table in TABLES}

    def rows(self, table: str, blocks: Sequence[NDArray[np.void]], first_row: int) -> memoryview:
        """The chunk of `blocks`, one after the other. Valid until the next call."""
        count, size, views = self._lay_out(self._layouts[table], blocks)
        step, seq = views["step"], views["seq"]
        least, most = np.minimum.reduce, np.maximum.reduce  # `min` and `max` are functions of Python around them
        ranges = (int(least(step)), int(most(step)), int(least(seq)), int(most(seq)))
        return self._seal(TABLE_CODE[table], count, size, first_row, ranges)

    def of_layout(
        self, code: int, layout: Layout, block: NDArray[np.void], first_row: int, ranges: tuple[int, int, int, int]
    ) -> memoryview:
        """The chunk of a table that is not one of the trace's own; what its header says is the caller's business."""
        count, size, _ = self._lay_out(layout, [block])
        return self._seal(code, count, size, first_row, ranges)

    def _lay_out(self, layout: Layout, blocks: Sequence[NDArray[np.void]]) -> tuple[int, int, dict[str, NDArray[Any]]]:
        count = sum(map(len, blocks))
        places, size = layout.offsets(count)
        start = CHUNK_HEADER.size
        self._reserve(start + size)
        views, buffer = {}, self._buffer
        for name, dtype in layout.columns:
            begin = start + places[name]
            column = views[name] = np.ndarray(count, dtype, buffer, begin)
            end = begin + column.nbytes
            if end % ALIGN:
                buffer[end : end + -end % ALIGN] = 0
            at = 0
            for block in blocks:
                column[at : at + len(block)] = block[name]
                at += len(block)
        return count, size, views

    def facts(self, lines: Sequence[bytes], first_row: int) -> memoryview:
        text = b"\n".join(lines) + b"\n"
        size = padded(len(text))
        self._reserve(CHUNK_HEADER.size + size)
        text += b"\n" * (size - len(text))
        self._buffer[CHUNK_HEADER.size : CHUNK_HEADER.size + size] = np.frombuffer(text, np.uint8)
        return self._seal(FACTS_CODE, len(lines), size, first_row, (0, 0, 0, 0))

    def _reserve(self, size: int) -> None:
        if len(self._buffer) < size:
            self._buffer = np.empty(size * 5 // 4, np.uint8)

    def _seal(self, code: int, rows: int, size: int, first_row: int, ranges: tuple[int, int, int, int]) -> memoryview:
        whole = self._buffer.data[: CHUNK_HEADER.size + size]
        CHUNK_HEADER.pack_into(whole, 0, CHUNK_MAGIC, code, 0, rows, 0, size, first_row, *ranges)
        struct.pack_into("<I", whole, _CRC_AT, zlib.crc32(whole))
        return whole
