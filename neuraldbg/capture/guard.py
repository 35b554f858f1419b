"""Never hurt the training: the one place that swallows exceptions, ours only, and says so once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any, TypeVar

from neuraldbg.capture.kernels import frameless
from neuraldbg.errors import StoppedOnNaN

log = logging.getLogger("neuraldbg")  # not warnings.warn: under `-W error` that would stop the run
F = TypeVar("F", bound=Callable[..., Any])


class Guard:
    """Switches off, after its first failure, the one thing that failed: a place, or a place for one sort of subject.

    `strict` (tests) lets failures through. `undisturbed` gives the context our own work runs in; `quick` makes of an
    observer what runs it there without a frame.
    """

    def __init__(
        self,
        *,
        strict: bool = False,
        report: Callable[[str], None] | None = None,
        undisturbed: Callable[[], AbstractContextManager[Any]] = nullcontext,
        quick: Callable[..., Any] | None = None,
    ) -> None:
        self.strict = strict
        self.report = report
        self.undisturbed = undisturbed
        self.quick = quick
        self.broken: dict[tuple[str, Any], str] = {}
        self.unheard: tuple[type[Exception], ...] = ()  # what fails like this is left out without a word

    def shield(self, place: str, subject: Callable[..., Any] | None = None) -> Callable[[F], F]:
        """Wrap an observer so that nothing it raises reaches user code; its result is then None.

        `subject` names, from the arguments, what exactly is watched: only that is given up when it fails.
        """

        def caught(args: tuple[Any, ...], error: Exception) -> None:
            if self._goes_through(error):
                raise error
            self.failed(place, subject(*args) if subject else None, error)

        def decorate(observe: F) -> F:
            @wraps(observe)
            def call(*args: Any, **kwargs: Any) -> Any:
                if self.broken and (place, subject(*args) if subject else None) in self.broken:
                    return None
                try:
                    with self.undisturbed():
                        return observe(*args, **kwargs)
                except Exception as error:
                    if self._goes_through(error):
                        raise
                    return caught(args, error)

            made: Any = call if self.quick is None else self.quick(observe, call, caught, self)
            return made  # type: ignore[no-any-return]

        return decorate

    def inside(self, place: str) -> Callable[[F], F]:
        """The same for what is only ever called inside of something shielded: 0.3 us instead of 3."""
        key = (place, None)

        def decorate(observe: F) -> F:
            @wraps(observe)
            def call(*args: Any) -> Any:
                if self.broken and key in self.broken:
                    return None
                try:
                    return observe(*args)
                except Exception as error:
                    if self._goes_through(error):
                        raise
                    self.failed(place, None, error)
                    return None

            return call  # type: ignore[return-value]

        return decorate

    def teller(self, leave_out: Callable[[Callable[..., Any]], str]) -> Callable[..., None]:
        """The same for many who are called one after the other, without a frame for each. Whoever fails is named by
        `leave_out`, which sees to it that it is not called again."""

        def caught(notice: Callable[..., Any], error: Exception) -> None:
            if self._goes_through(error):
                raise error
            self.failed(leave_out(notice), None, error)

        def tell(notices: list[Callable[..., Any]], *args: Any) -> None:
            for notice in notices:
                try:
                    notice(*args)
                except Exception as error:
                    if self._goes_through(error):
                        raise
                    caught(notice, error)

        return tell if frameless.tell is None else partial(frameless.tell, caught)

    def _goes_through(self, error: Exception) -> bool:
        """What the user asked for does; in tests everything that is said."""
        return isinstance(error, StoppedOnNaN) or (self.strict and not isinstance(error, self.unheard))

    def failed(self, place: str, subject: Any, error: BaseException) -> None:
        self.broken[place, subject] = repr(error)
        if isinstance(error, self.unheard):
            return
        what = f"{place} of {subject}" if subject is not None else place
        text = f"stopped watching {what}: {type(error).__name__}: {error}; training continues"
        log.warning("%s", text)
        if self.report is not None:
            self.report(text)


def attempt(action: Callable[[], Any]) -> Any:
    """Ask something of a user's object (a property, a `__len__`, a repr) that may raise anything: None then."""
    try:
        return action()
    except Exception:  # noqa: BLE001
        return None


def attempt_or_why(action: Callable[[], Any]) -> tuple[Any, str | None]:
    """The same, with what was raised."""
    try:
        return action(), None
    except Exception as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {error}"
