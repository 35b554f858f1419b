"""Opening the page in the user's browser, where there is a screen to open it on. Nothing of it reaches the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
REMOTE = ("SSH_CONNECTION", "SSH_TTY")
OPEN = "import sys, webbrowser; webbrowser.open(sys.argv[1])"


def has_a_screen(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Whether a browser could be seen by whoever sits at this terminal."""
    if any(environment.get(name) for name in SCREENS):
        return True
    remote = any(environment.get(name) for name in REMOTE)
    return platform in ("darwin", "win32") and not remote


def open_page(address: str) -> None:
    """In a process of its own, without our terminal: a browser talks a lot, and one for terminals would take it over.
    Whether it worked is for the user to see; the address is printed anyway."""
    command, nowhere = [sys.executable, "-c", OPEN, address], subprocess.DEVNULL
    rest = {name: value for name, value in os.environ.items() if name != "TERM"}
    with suppress(OSError):
        subprocess.Popen(command, env=rest, start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)
