"""What a command that takes a while is doing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Hands out a function to say it with: a line that changes at a terminal, one line for each elsewhere."""
    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield lambda text: click.echo(f"neuraldbg: {text}", err=True)
    else:
        from neuraldbg.surfaces.terminal.console import make_console

        with make_console(sys.stderr).status("getting ready") as status:
            yield status.update
