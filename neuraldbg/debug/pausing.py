"""A training that is held by a hook, until somebody lets it go on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from neuraldbg.debug.hook_parts import HookContext, HookResult

TICK_S: Final = 0.25  # a timed wait, so that Ctrl-C works


class Pauses:
    """Whoever can answer is waited for: a function of the user's, `resume()` where somebody has said that it will come
    (`expected`), or somebody at the terminal. Nobody there: training goes on, and that is said."""

    def __init__(self) -> None:
        self.on_pause: Callable[[HookContext], Any] | None = None
        self.expected = False  # `resume` will be called from another thread
        self.count = 0
        self.context: HookContext | None = None  # where it is held now
        self._open = threading.Event()

    @property
    def paused(self) -> bool:
        return self.context is not None

    def resume(self) -> None:
        self._open.set()

    def hold(self, context: HookContext, hook: str, terminal: Any) -> HookResult:
        if self.context is not None:
            return HookResult.Skipped("it is paused already")
        if self.on_pause is None and not self.expected and not _somebody_at(terminal):
            return HookResult.Skipped("nobody can resume here: session.on_pause(f), or session.pauses.expected = True")
        self._open.clear()
        self.context, self.count = context, self.count + 1
        try:
            if self.on_pause is not None:
                self.on_pause(context)
            elif self.expected:
                while not self._open.wait(TICK_S):
                    pass
            else:
                _ask(context, hook, terminal)
        finally:
            self.context = None
        return HookResult.Success


def _somebody_at(terminal: Any) -> bool:
    try:
        return bool(terminal is not None and terminal.isatty() and sys.stderr is not None and sys.stderr.isatty())
    except (OSError, ValueError, AttributeError):
        return False


def _ask(context: HookContext, hook: str, terminal: Any) -> None:
    where = f"{context.layer} ({context.operation}), step {context.step}"
    print(f"neuraldbg: hook {hook!r} has paused at {where}; Enter lets it go on", file=sys.stderr, flush=True)
    terminal.readline()
