"""Reads TensorBoard's event files without TensorBoard: only what a test asks for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Event:
    wall_s: float
    step: int = 0
    version: str | None = None
    tag: str | None = None
    scalar: float | None = None
    histogram: dict[str, list[float]] | None = None
    image: bytes | None = None
    text: str | None = None
    raw: dict[int, list[Any]] = field(default_factory=dict)


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, as the definition has it."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ 0x82F63B78 * (rest & 1)
    return rest ^ 0xFFFFFFFF


def unmasked(crc: int) -> int:
    rotated = (crc - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def messages(data: bytes) -> Iterator[bytes]:
    """Every record, its checksums checked."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (check,) = struct.unpack_from("<I", data, at + 8)
        assert unmasked(check) == slow_crc32c(data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        (check,) = struct.unpack_from("<I", data, at + 12 + length)
        assert unmasked(check) == slow_crc32c(body)
        yield body
        at += 16 + length


def fields(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif wire == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            assert wire == 2
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        found.setdefault(number, []).append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def events(path: Path) -> list[Event]:
    return [_event(body) for body in messages(path.read_bytes())]


def _event(body: bytes) -> Event:
    raw = fields(body)
    step = raw.get(2, [0])[0]
    one = Event(raw[1][0], step - (1 << 64) if step >> 63 else step, raw=raw)
    if 3 in raw:
        one.version = raw[3][0].decode()
    if 5 in raw:
        value = fields(fields(raw[5][0])[1][0])
        one.tag = value[1][0].decode()
        one.scalar = value.get(2, [None])[0]
        if 5 in value:
            held = fields(value[5][0])
            limits, counts = (list(struct.unpack(f"<{len(held[at][0]) // 8}d", held[at][0])) for at in (6, 7))
            one.histogram = {"ends": [held[1][0], held[2][0]], "limits": limits, "counts": counts}
        if 4 in value:
            one.image = fields(value[4][0])[4][0]
        if 9 in value:
            assert fields(fields(value[9][0])[1][0])[1] == [b"text"]
            one.text = fields(value[8][0])[8][0].decode()
    return one
