"""`server.json` in a run directory: where the server of the run can be reached, as long as it listens."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SERVER_FILE = "server.json"
KNOCK_S = 0.5
STAY = b"stay"  # a trainer's last word to its viewer: somebody is at the terminal, let the page stay


class ServerFile:
    """Written when it is made, unless another server of this run already listens. `remove` takes away only its own."""

    def __init__(self, run_dir: Path, url: str, token: str | None = None) -> None:
        self._file = run_dir / SERVER_FILE
        self._told = {"url": url, "pid": os.getpid(), **({"token": token} if token else {})}
        if run_dir.is_dir() and not _listens(read_server(run_dir)):
            self._write()

    def _write(self) -> None:
        draft = self._file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a run that can only be read is served all the same
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(self._told, file)
            os.replace(draft, self._file)

    def remove(self) -> None:
        if read_server(self._file.parent) == self._told:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)


def read_server(run_dir: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((run_dir / SERVER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("url"), str) else None


def how_to_continue(run_dir: Path) -> str | None:
    """The line that lets a paused run go on, where a server has told that it listens."""
    found = read_server(run_dir)
    if found is None:
        return None
    token = f" -H 'Authorization: Bearer {found['token']}'" if "token" in found else ""
    return f"curl -X POST{token} {found['url']}/api/continue"


def _listens(told: dict[str, Any] | None) -> bool:
    """A server that was killed leaves its file behind: only one that takes calls counts."""
    if told is None:
        return False
    try:
        where = urlsplit(told["url"])
        socket.create_connection((where.hostname or "", where.port or 80), timeout=KNOCK_S).close()
    except (OSError, ValueError):
        return False
    return True
