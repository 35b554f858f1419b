"""Opening the page in the user's browser, where there is a screen to open it on. Nothing of it reaches the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from pathlib import Path

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
REMOTE = ("SSH_CONNECTION", "SSH_TTY")
OPEN = "import sys, webbrowser; webbrowser.open(sys.argv[1])"


def has_a_screen(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Whether a browser could be seen by whoever sits at this terminal."""
    if any(environment.get(name) for name in SCREENS):
        return True
    remote = any(environment.get(name) for name in REMOTE)
    return platform in ("darwin", "win32") and not remote


def open_page(address: str, folder: Path) -> Path | None:
    """In a process of its own, without our terminal: a browser talks a lot, and one for terminals would take it over.
    Whether it worked is for the user to see; the address is printed anyway.

    Everybody on the machine can read the words of a command. An address with a token in it is therefore put in a file
    that only this user can read, and the browser is sent there; the file is the answer, for whoever takes it away."""
    secret = "?" in address
    with suppress(OSError):
        file = redirection(address, folder) if secret else None
        where = address if file is None else file.absolute().as_uri()
        command, nowhere = [sys.executable, "-c", OPEN, where], subprocess.DEVNULL
        rest = {name: value for name, value in os.environ.items() if name != "TERM"}
        subprocess.Popen(command, env=rest, start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)
        return file
    return None


def redirection(address: str, folder: Path) -> Path:
    file = folder / "open.html"
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as page:
        page.write(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}"><title>NeuralDbg</title>'
        )
    return file
