"""How a written value becomes a typed one. Every refusal says what was expected and what was found."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from neuraldbg.errors import ConfigError

LARGEST_SIZE = 2**63 - 1
DECIMAL_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
BINARY_UNITS = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50}
SHORT_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
UNITS = DECIMAL_UNITS | BINARY_UNITS | SHORT_UNITS
SIZE_TEXT = re.compile(r"(\d{1,20}(?:\.\d{1,20})?) ?([A-Za-z]{0,3})", re.ASCII)
TRUE_WORDS = {"true", "yes", "on", "1"}
FALSE_WORDS = {"false", "no", "off", "0"}
RECORDING_SHARE = 0.25  # of the budget
ONE_PERCENT = 0.01


@dataclass(frozen=True, slots=True)
class Budget:
    """The share of the run's time that observing it may take: 0 is off, infinity is every step in full."""

    ratio: float

    @property
    def full(self) -> bool:
        return self.ratio == math.inf

    @property
    def off(self) -> bool:
        return self.ratio == 0

    @property
    def for_recording(self) -> float:
        """Of the time, for a recording that leaves steps out; where every step is watched in full, as by default."""
        return RECORDING_SHARE * (ONE_PERCENT if self.full else self.ratio)

    def __str__(self) -> str:
        if self.full:
            return "full"
        return "off" if self.off else f"{self.ratio * 100:.12g}%"


@dataclass(frozen=True, slots=True)
class Form:
    """A sort of value: its name in messages and tables, and its reader."""

    expected: str
    parse: Callable[[object], Any]


def shown(value: object) -> str:
    """A value in one short line."""
    if value is None or value == "":
        return "nothing"
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return f"a huge {type(value).__name__}"


def refused(expected: str, found: object) -> ConfigError:
    return ConfigError(f"expected {expected}, found {shown(found)}")


def parse_bytes(value: object) -> int:
    """`512MB`, `2GB` (powers of 1000), `4GiB` (powers of 1024) or a plain number of bytes."""
    expected = "a size such as 512MB, 2GB or 4GiB"
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise refused(expected, value)
    if isinstance(value, int):
        size = value
    else:
        match = SIZE_TEXT.fullmatch(value.strip())
        unit = UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None:
            raise refused(expected, value)
        size = int(Decimal(match[1]) * unit)
    if not 0 <= size <= LARGEST_SIZE:
        raise refused(expected, value)
    return size


def shown_bytes(size: int) -> str:
    """The shortest exact spelling that `parse_bytes` reads back."""
    for unit, factor in reversed(DECIMAL_UNITS.items()):
        if unit and size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def parse_budget(value: object) -> Budget:
    """`1%`, `0.01`, `full` (every step) or `off` (no statistics). YAML reads a bare `off` as false."""
    expected = "a share such as 1% or 0.01, `full` or `off`"
    if isinstance(value, Budget):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if value is False or text == "off":
        return Budget(0.0)
    if text == "full":
        return Budget(math.inf)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise refused(expected, value)
    try:
        number = float(text.removesuffix("%") if text else value)
    except (ValueError, OverflowError):
        raise refused(expected, value) from None
    percent = text.endswith("%")
    if not percent and 1 <= number <= 100:
        raise ConfigError(f"expected {expected}, found {shown(value)}: write {number:g}% if you mean percent")
    ratio = number / 100 if percent else number
    if not 0 <= ratio <= 1:  # also refuses nan
        raise refused(expected, value)
    return Budget(abs(ratio))


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if isinstance(value, int) and value in (0, 1):
        return value == 1
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise refused("true or false", value)
    return word in TRUE_WORDS


def integer(expected: str, least: int, most: int) -> Form:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise refused(expected, value)
        try:
            number = int(value)
        except (ValueError, OverflowError):
            raise refused(expected, value) from None
        if (isinstance(value, float) and number != value) or not least <= number <= most:
            raise refused(expected, value)
        return number

    return Form(expected, parse)


def number(expected: str, accepts: Callable[[float], bool], *, scale: float = 1.0) -> Form:
    """A finite number that `accepts` agrees to, divided by `scale`."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise refused(expected, value)
        try:
            found = float(value)  # YAML 1.1 hands over 1e-5 as text
        except (ValueError, OverflowError):
            raise refused(expected, value) from None
        if not math.isfinite(found) or not accepts(found):
            raise refused(expected, value)
        return found / scale

    return Form(expected, parse)


def choice(*names: str, also: dict[str, str] | None = None) -> Form:
    """One of `names`, in any case; `also` maps further spellings to one of them."""
    spellings = {name: name for name in names} | (also or {})
    expected = "one of " + ", ".join(names)

    def parse(value: object) -> str:
        name = spellings.get(value.strip().lower()) if isinstance(value, str) else None
        if name is None:
            raise refused(expected, value)
        return name

    return Form(expected, parse)


def _recording(value: object) -> str:
    """YAML reads a bare `off` as false."""
    word = value.strip().lower() if isinstance(value, str) else value
    if word == "auto":
        return "auto"
    if value is True or word == "full":
        return "full"
    if value is False or word == "off":
        return "off"
    if isinstance(word, str) and word in TRUE_WORDS | FALSE_WORDS:
        return "full" if word in TRUE_WORDS else "off"
    raise refused("full, auto or off", value)


def names(expected: str, *, separator: str | None, known: Sequence[str] = ()) -> Form:
    """A list of texts; one text stands for a list of one, or is split at `separator`."""

    def parse(value: object) -> tuple[str, ...]:
        items = value
        if isinstance(value, str):
            items = value.split(separator) if separator else [value]
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise refused(expected, value)
        kept = tuple(item.strip() for item in items if item.strip())
        for item in kept:
            if known and item not in known:
                raise refused(expected, item)
        return kept

    return Form(expected, parse)


def optional(form: Form, absent: str) -> Form:
    """`form`, or nothing at all; `absent` says what nothing means."""
    return Form(f"{form.expected} ({absent})", lambda value: None if value is None else form.parse(value))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise refused("an address such as 127.0.0.1", value)
    return value.strip()


def _path(value: object) -> Path:
    expected = "a path"
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise refused(expected, value)
    try:
        return Path(value).expanduser()
    except RuntimeError:  # ~somebody without a home directory
        raise refused(expected, value) from None


def _positive_size(value: object) -> int:
    size = parse_bytes(value)
    if size == 0:
        raise refused("a size above zero", value)
    return size


RECORDING = Form("full, auto or off", _recording)
BOOLEAN = Form("true or false", _boolean)
BUDGET = Form("a share such as 1% or 0.01, `full` or `off`", parse_budget)
COUNT = integer("a whole number above zero", 1, 2**53)
PORT = integer("a port from 0 (any free one) to 65535", 0, 65535)
SIZE = Form("a size such as 512MB, 2GB or 4GiB", _positive_size)
ADDRESS = Form("an address", _text)
PATH = Form("a path", _path)
SECONDS = number("seconds above zero", lambda value: value > 0)
MILLISECONDS = number("milliseconds above zero", lambda value: value > 0, scale=1000.0)
SHARE = number("a number from 0 to 1", lambda value: 0 <= value <= 1)
THRESHOLD = number("a number above zero", lambda value: value > 0)
