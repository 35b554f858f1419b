"""What is wrong with a `.neural` file, where, and how it is shown: the line, a caret, what to do."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from neuraldbg.errors import DslError

E = TypeVar("E", bound=DslError)

MOST_PROBLEMS = 20  # shown of one file


class Severity(Enum):
    """How much a problem matters; ERROR and CRITICAL are fatal."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def fatal(self) -> bool:
        return self in (Severity.ERROR, Severity.CRITICAL)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to say about one place of a file. `line` and `column` count from 1."""

    severity: Severity
    line: int
    column: int
    message: str
    kind: str = "syntax"  # syntax, value, shape, meaning, choice
    layer: str | None = None

    def as_dict(self) -> dict[str, object]:
        return {
            "severity": self.severity.value,
            "line": self.line,
            "column": self.column,
            "kind": self.kind,
            "layer": self.layer,
            "message": self.message,
        }


class Source:
    """The text of a file and the way from an offset to a line."""

    def __init__(self, text: str, name: str = "<text>") -> None:
        self.text, self.name = text, name
        starts = [0]
        at = text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = text.find("\n", at + 1)
        self._starts = starts

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line_text(self, line: int) -> str:
        if not 1 <= line <= len(self._starts):
            return ""
        start = self._starts[line - 1]
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")

    def problem(self, severity: Severity, offset: int, message: str, **more: str) -> Problem:
        line, column = self.position(min(offset, len(self.text)))
        return Problem(severity, line, column, message, **more)


def render(problem: Problem, source: Source) -> str:
    """`file:line:column: severity: message`, then the line with a caret under the place."""
    head = f"{source.name}:{problem.line}:{problem.column}: {problem.severity.value}: {problem.message}"
    text = source.line_text(problem.line)
    shown, column = _window(text.replace("\t", " "), problem.column)
    if not shown.strip():
        return head
    number = str(problem.line)
    return f"{head}\n {number} | {shown}\n {' ' * len(number)} | {' ' * (column - 1)}^"


def _window(text: str, column: int, width: int = 160) -> tuple[str, int]:
    """The part of a very long line around the column."""
    safe = "".join(c if c.isprintable() else "?" for c in text)
    if len(safe) <= width:
        return safe, column
    start = max(0, column - width // 2)
    return safe[start : start + width], column - start


def render_all(problems: Iterable[Problem], source: Source, *, most: int = MOST_PROBLEMS) -> str:
    ordered = _once_each(sorted(problems, key=lambda each: (each.line, each.column)))
    parts = [render(each, source) for each in ordered[:most]]
    if len(ordered) > most:
        parts.append(f"{source.name}: and {len(ordered) - most} more")
    return "\n".join(parts)


def _once_each(problems: Sequence[Problem]) -> list[Problem]:
    """A layer that is repeated is noted once for its line, with how many more there are alike."""
    alike: dict[object, list[Problem]] = {}
    for each in problems:
        text = re.sub(r"[\d.,x]*\d", "#", each.message)
        place = (each.severity, each.line, each.column, text)
        alike.setdefault(each if each.severity.fatal else place, []).append(each)
    return [
        replace(first, message=f"{first.message} (and {len(more)} more like it)") if more else first
        for first, *more in alike.values()
    ]


def mistakes(problems: Iterable[Problem], source: Source, kind: type[E]) -> E:
    """The error that carries the mistakes of a file; notes and warnings beside them are left out."""
    wrong = sorted((each for each in problems if each.severity.fatal), key=lambda each: (each.line, each.column))
    first = wrong[0]
    place = f"line {first.line}, column {first.column}"
    message = f"{source.name}: {place}: {first.message}"
    if len(wrong) > 1:
        message = f"{len(wrong)} errors in {source.name}; the first: {place}: {first.message}"
    return kind(message, problems=wrong, listing=render_all(wrong, source))
