"""TensorBoard's event files, written by hand: records framed by their length and two checksums, in each a protobuf.

A record: length (u64), masked CRC-32C of the length, the event, masked CRC-32C of the event; all little-endian. The few
messages that are needed (Event, Summary, HistogramProto, an image, a text) are encoded field by field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

VERSION: Final = "brain.Event:2"
AT_A_TIME: Final = 20_000  # records that are checksummed together
FEW: Final = 16  # records of one length that are not worth an array
_MASK: Final = 0xA282EAD8
_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli, reflected
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # wire types
_STRING: Final = 7  # of TensorFlow's types


# -- protobuf ----------------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative one is its complement
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, wire: int, data: bytes) -> bytes:
    return _varint(number << 3 | wire) + data


def _held(number: int, data: bytes) -> bytes:
    return _field(number, _BYTES, _varint(len(data)) + data)


def _double(number: int, value: float) -> bytes:
    return _field(number, _DOUBLE, struct.pack("<d", value))


def _whole(number: int, value: int) -> bytes:
    return _field(number, _VARINT, _varint(value))


def scalar(tag: str, value: float) -> bytes:
    """A value of a curve; TensorBoard keeps 32 bits of it."""
    with np.errstate(over="ignore"):
        return _held(1, tag.encode()) + _field(2, _FLOAT, np.float32(value).tobytes())


def histogram(tag: str, edges: Sequence[float], counts: Sequence[float]) -> bytes:
    """Counts of values between one edge and the next. Sums are left out: they are not known of counts."""
    limits = struct.pack(f"<{len(counts)}d", *edges[1:])
    numbers = struct.pack(f"<{len(counts)}d", *counts)
    inside = _double(1, edges[0]) + _double(2, edges[-1]) + _double(3, float(sum(counts)))
    return _held(1, tag.encode()) + _held(5, inside + _held(6, limits) + _held(7, numbers))


def picture(tag: str, png: bytes, size: tuple[int, int]) -> bytes:
    """`size`: width and height."""
    inside = _whole(1, size[1]) + _whole(2, size[0]) + _whole(3, 3) + _held(4, png)
    return _held(1, tag.encode()) + _held(4, inside)


def text(tag: str, said: str) -> bytes:
    """Markdown, for the Text tab."""
    plugin = _held(9, _held(1, _held(1, b"text")))
    tensor = _held(8, _whole(1, _STRING) + _held(2, _held(2, _whole(1, 1))) + _held(8, said.encode()))
    return _held(1, tag.encode()) + plugin + tensor


def event(step: int, wall_s: float, value: bytes) -> bytes:
    """One value of a step."""
    return _double(1, wall_s) + _whole(2, step) + _held(5, _held(1, value))


def first_event(wall_s: float) -> bytes:
    """What every file begins with."""
    return _double(1, wall_s) + _held(3, VERSION.encode())


# -- records -----------------------------------------------------------------------------------------------------------


@cache
def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        rest = byte
        for _ in range(8):
            rest = rest >> 1 ^ (_POLYNOMIAL if rest & 1 else 0)
        found.append(rest)
    return tuple(found)


def crc32c(data: bytes) -> int:
    table, rest = _table(), 0xFFFFFFFF
    for byte in data:
        rest = table[(rest ^ byte) & 0xFF] ^ rest >> 8
    return rest ^ 0xFFFFFFFF


def _crc32c_of_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Of many messages of one length at once."""
    table, rest = np.array(_table(), np.uint32), np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        rest = table[(rest ^ column) & 0xFF] ^ rest >> np.uint32(8)
    return rest ^ np.uint32(0xFFFFFFFF)


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _checksums(messages: Sequence[bytes]) -> list[int]:
    by_length: dict[int, list[int]] = {}
    for at, message in enumerate(messages):
        by_length.setdefault(len(message), []).append(at)
    found = [0] * len(messages)
    for length, places in by_length.items():
        if len(places) < FEW:
            for at in places:
                found[at] = crc32c(messages[at])
            continue
        rows = np.frombuffer(b"".join(messages[at] for at in places), np.uint8).reshape(-1, length)
        for at, crc in zip(places, _crc32c_of_rows(rows).tolist(), strict=True):
            found[at] = crc
    return found


@cache
def _head(length: int) -> bytes:
    data = struct.pack("<Q", length)
    return data + struct.pack("<I", masked(crc32c(data)))


def records(messages: Iterable[bytes]) -> Iterator[bytes]:
    """The file, piece by piece."""
    waiting = iter(messages)
    while some := list(islice(waiting, AT_A_TIME)):
        checks = _checksums(some)
        yield b"".join(
            _head(len(message)) + message + struct.pack("<I", masked(crc))
            for message, crc in zip(some, checks, strict=True)
        )
