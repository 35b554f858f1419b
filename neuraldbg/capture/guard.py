"""Never hurt the training: the one place that swallows exceptions, ours only, and says so once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

log = logging.getLogger("neuraldbg")  # not warnings.warn: under `-W error` that would stop the run
F = TypeVar("F", bound=Callable[..., Any])


class Guard:
    """Counts our own failures per watched place and switches a place off after its first one.

    `strict` (tests) lets them through instead.
    """

    def __init__(self, *, strict: bool = False, report: Callable[[str], None] | None = None) -> None:
        self.strict = strict
        self.report = report
        self.broken: dict[str, str] = {}

    def shield(self, place: str) -> Callable[[F], F]:
        """Wrap an observer so that nothing it raises reaches user code. Its result is then None."""

        def decorate(observe: F) -> F:
            @wraps(observe)
            def call(*args: Any, **kwargs: Any) -> Any:
                if place in self.broken:
                    return None
                try:
                    return observe(*args, **kwargs)
                except Exception as error:
                    if self.strict:
                        raise
                    self.failed(place, error)
                    return None

            return call  # type: ignore[return-value]

        return decorate

    def failed(self, place: str, error: BaseException) -> None:
        self.broken[place] = repr(error)
        text = f"stopped watching {place}: {type(error).__name__}: {error}; training continues"
        log.warning("%s", text)
        if self.report is not None:
            self.report(text)


def attempt(action: Callable[[], Any]) -> Any:
    """Ask something of a user's object (a property, a `__len__`, a repr) that may raise anything: None then."""
    try:
        return action()
    except Exception:  # noqa: BLE001
        return None
