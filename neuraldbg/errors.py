"""Everything we raise on purpose.

NeuralDbgError
|-- UsageError            the command or call itself is wrong (exit code 2)
|   |-- ScriptNotFound
|   |-- ConfigError       a key or value in a file, variable or flag
|   |-- UnknownName       a layer, kind or field that is not there; answers with the nearest
|   |   `-- UnknownLayer
|   |-- UnknownRun        a run that is not served
|   |-- UnknownDiagnosis  an id that is not in the catalogue
|   |-- ConditionError    the condition of a breakpoint, with the place in it
|   `-- UnknownBreakpoint an id, layer or group that no breakpoint has
|-- DslError              a .neural file that cannot be used, with every problem in it (exit code 2)
|   |-- ShapeMismatch     its layers do not fit together (exit code 3)
|   |-- BackendMissing    what it should run on is not here (exit code 4)
|   `-- DslFileNotFound   (exit code 5)
|-- TraceError            a run directory that cannot be read
|   |-- TraceNotFound
|   |-- TraceTooNew
|   `-- TraceDamaged
|-- RunDirectoryError     a run directory that cannot be written
|-- ExtraMissing          a package that only some commands need is not installed (exit code 4)
|-- StoreError            an object store, or another place of data sets, that cannot be used now
|   |-- StoreDenied       it does not let us
|   `-- StoreNotFound     there is no such bucket, folder or object
|-- StoppedOnNaN          a NaN or Inf stopped the training, as asked; raised before it reaches the weights
|-- ChannelError          what the training process answered to a request, or that it did not
|   |-- ChannelClosed     there is no training process (any more)
|   `-- ChannelSilent     there is one, and it does not answer
|-- NotPaused             a request that only a paused (or only a running) training can serve
|-- NotNow                a request that the state of the run does not allow
|-- NotRecorded           a past value that is no longer, or never was, stored
`-- AlreadyRegistered     two plug-ins of one name
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any


def uncaught() -> BaseException | None:
    """What ended the program, asked while it ends. None where nothing did, or where somebody types line by line."""
    return None if hasattr(sys, "ps1") else getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names closest to `name`, best first, ignoring case: misspelt ones, then those it is a part of."""
    by_lower: dict[str, str] = {}
    for item in known:
        by_lower.setdefault(item.lower(), item)
    wanted = name.lower()
    holding = sorted(
        (item for item in by_lower if len(wanted) > 1 and wanted in item), key=lambda item: (len(item), item)
    )
    close = get_close_matches(wanted, by_lower, n=count, cutoff=0.6)
    if not holding and not close:
        close = get_close_matches(wanted, by_lower, n=1, cutoff=0.5)
    return [by_lower[match] for match in dict.fromkeys([*close[:1], *holding, *close])][:count]


class NeuralDbgError(Exception):
    """Everything we raise on purpose."""


class UsageError(NeuralDbgError):
    pass


class ScriptNotFound(UsageError):
    pass


class ConfigError(UsageError):
    pass


class UnknownName(UsageError):
    def __init__(self, what: str, name: str, known: Iterable[str], *, listed_by: str) -> None:
        self.name = name
        self.nearest = nearest(name, known)
        hint = f"did you mean {' or '.join(map(repr, self.nearest))}?" if self.nearest else f"{listed_by} lists them"
        super().__init__(f"no {what} {name!r} in this run; {hint}")


class UnknownLayer(UnknownName):
    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__("layer", name, known, listed_by="`neural inspect RUN`")


class UnknownRun(UsageError):
    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = list(known)
        self.nearest = nearest(name, names)
        hint = f"did you mean {self.nearest[0]!r}?" if self.nearest else f"there is {', '.join(names[:5])}"
        super().__init__(f"no run {name!r} is served here; {hint}")


class UnknownDiagnosis(UsageError):
    def __init__(self, name: str, known: Iterable[str], other_names: Iterable[str] = ()) -> None:
        wanted = name.strip().replace("-", "_").replace(" ", "_")
        self.nearest = nearest(wanted, known) or nearest(wanted, other_names)
        near = " or ".join(map(repr, self.nearest))
        hint = f"did you mean {near}?" if near else "`neural explain` lists them"
        super().__init__(f"no diagnosis {name!r}; {hint}")


class ConditionError(UsageError):
    """Says why and shows where: `.column` counts from 0."""

    def __init__(self, why: str, text: str, column: int) -> None:
        self.why, self.text, self.column = why, text, max(0, min(column, len(text)))
        shown = text if len(text) <= 120 and text.isprintable() else repr(text[:80])
        super().__init__(f"bad condition {shown!r} at character {self.column + 1}: {why}")

    def caret(self) -> str:
        """The condition, and under it a mark where the mistake is."""
        line = "".join(letter if letter.isprintable() else " " for letter in self.text)
        return f"{line}\n{' ' * self.column}^"


class UnknownBreakpoint(UsageError):
    def __init__(self, message: str, near: Iterable[str] = ()) -> None:
        self.nearest = list(near)
        super().__init__(message)


class DslError(NeuralDbgError):
    """`.problems` are those of the file; `.listing` shows them with their lines."""

    exit_code = 2

    def __init__(self, message: str, *, problems: Sequence[Any] = (), listing: str = "") -> None:
        self.problems = list(problems)
        self.listing = listing
        super().__init__(message)


class ShapeMismatch(DslError):
    exit_code = 3


class BackendMissing(DslError):
    exit_code = 4


class DslFileNotFound(DslError):
    exit_code = 5


class ChannelError(NeuralDbgError):
    def __init__(
        self, message: str, *, kind: str = "ChannelError", details: Mapping[str, object] | None = None
    ) -> None:
        self.kind = kind
        self.details = dict(details or {})
        super().__init__(message)


class ChannelClosed(ChannelError):
    pass


class ChannelSilent(ChannelError):
    pass


class NotPaused(NeuralDbgError):
    pass


class NotNow(NeuralDbgError):
    pass


ABORTED = "aborted from the debugger"


class AbortedByUser(KeyboardInterrupt):
    """Leaves the training from a breakpoint as Ctrl-C would: `except Exception` does not hold it up."""

    def __init__(self, said: str = ABORTED) -> None:
        super().__init__(said)


class TraceError(NeuralDbgError):
    pass


class TraceNotFound(TraceError):
    pass


class TraceTooNew(TraceError):
    pass


class TraceDamaged(TraceError):
    pass


class RunDirectoryError(NeuralDbgError):
    pass


class ExtraMissing(NeuralDbgError):
    exit_code = 4

    def __init__(self, what: str, package: str, extra: str, why: str = "") -> None:
        self.package, self.extra = package, extra
        broken = f" ({why})" if why and "No module named" not in why else ""
        super().__init__(
            f"{what} needs {package}, which is not installed{broken}: pip install 'neural-debugger[{extra}]'"
        )


class StoreError(NeuralDbgError):
    pass


class StoreDenied(StoreError):
    pass


class StoreNotFound(StoreError):
    pass


class StoppedOnNaN(NeuralDbgError):
    def __init__(self, what: str, step: int, place: str | None) -> None:
        self.step, self.place = step, place
        at = f", first made {place}" if place else ""
        super().__init__(f"{what} at update {step}{at}; the weights are as they were before it")


class NotRecorded(NeuralDbgError):
    pass


class AlreadyRegistered(NeuralDbgError):
    pass
