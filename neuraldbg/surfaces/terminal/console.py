"""The one way we print: rich, without colour or wide characters where the other end has none."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST, WIDEST = 60, 120


def make_console(stream: IO[str], *, width: int | None = None) -> Console:
    """A console on `stream`: 80 columns when it is not a terminal, no colour then nor under NO_COLOR."""
    from rich.console import Console

    on_terminal = is_terminal(stream)
    colours = on_terminal and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    if width is None and not on_terminal:
        width = 80
    console = Console(
        file=stream,
        width=width,
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=False,
        force_terminal=colours,
        no_color=True if os.environ.get("NO_COLOR") else None,
    )
    if width is None:
        console.width = min(max(console.width, NARROWEST), WIDEST)
    return console


def is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def ascii_only(stream: IO[str]) -> bool:
    return not (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "").startswith("utf")
