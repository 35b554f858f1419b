"""Text that fits: cells of a terminal, marks in Unicode or ASCII, colours where there is a terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Final

from neuraldbg.surfaces.terminal.console import is_terminal

EIGHTHS: Final = "▏▎▍▌▋▊▉█"
DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille character, column by column
COLOURS: Final[Mapping[str, str]] = {"red": "31", "green": "32", "yellow": "33", "blue": "34"}


@dataclass(frozen=True, slots=True)
class Marks:
    """What is drawn with."""

    bar: str  # from the thinnest to the full one
    shades: str  # from the smallest value to the largest
    wall: str
    floor: str
    corner: str
    rest: str  # of a bar that is not full
    braille: bool


UNICODE: Final = Marks(EIGHTHS, " ░▒▓█", "│", "─", "└", "·", braille=True)
ASCII: Final = Marks(".#", " .:-=+*#%@", "|", "-", "+", ".", braille=False)


def plain(text: object, *, ascii_only: bool) -> str:
    """One line without anything that a terminal would obey."""
    line = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return line.encode("ascii", "replace").decode() if ascii_only else line


def cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def fitted(text: str, width: int) -> str:
    """The beginning of a text that is too wide, with two dots where there is room for them."""
    if cells(text) <= width:
        return text
    dots = ".." if width > 4 else ""
    kept, taken = "", 0
    for letter in text:
        taken += cells(letter)
        if taken > width - len(dots):
            break
        kept += letter
    return kept + dots


def padded(text: str, width: int) -> str:
    text = fitted(text, width)
    return text + " " * (width - cells(text))


def bar(share: float, width: int, marks: Marks) -> str:
    """`share` of a width; what is more than nothing can be seen."""
    if width < 1 or not share > 0:
        return ""
    parts = len(marks.bar)
    filled = max(1, math.floor(min(share, 1.0) * width * parts + 0.5))
    whole, rest = divmod(filled, parts)
    return marks.bar[-1] * whole + (marks.bar[rest - 1] if rest else "")


def painted(text: str, colour: str, *, colours: bool) -> str:
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colours and text else text


def has_colours(stream: IO[str]) -> bool:
    """Only on a terminal that knows them, and not where the user wants none."""
    dumb = os.environ.get("TERM", "") in ("", "dumb", "unknown")
    return is_terminal(stream) and not dumb and not os.environ.get("NO_COLOR")
