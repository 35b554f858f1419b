"""`server.json` in a run directory: where the server of the run can be reached, as long as it listens.

The server holds a lock on the file while it lives. One that was killed lost its lock with its life: whoever has taken
its port since is not taken for it.
"""

from __future__ import annotations

import json
import os
import shlex
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
        self._held: int | None = None
        told = live_server(run_dir)
        if run_dir.is_dir() and (told is None or not _listens(told["url"])):
            self._write()

    def _write(self) -> None:
        draft = self._file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a run that can only be read is served all the same
            self._held = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            _locked(self._held, exclusively=True)
            os.write(self._held, json.dumps(self._told).encode())
            os.replace(draft, self._file)

    def remove(self) -> None:
        if read_server(self._file.parent) == self._told:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


def read_server(run_dir: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((run_dir / SERVER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("url"), str) else None


def live_server(run_dir: Path) -> dict[str, Any] | None:
    """What the server of this run has told, while it is there."""
    found = read_server(run_dir)
    return found if found is not None and _held(run_dir / SERVER_FILE, found.get("pid")) else None


def how_to_continue(run_dir: Path) -> str | None:
    """The line that lets a paused run go on, where a server has told that it listens."""
    found = live_server(run_dir)
    if found is None:
        return None
    token = f" -H 'Authorization: Bearer {found['token']}'" if "token" in found else ""
    return f"curl -X POST{token} {shlex.quote(found['url'])}/api/continue"


def _held(file: Path, pid: Any) -> bool:
    """Whether the process lives that wrote it. Nobody knocks: that would wake a server which waits to be asked."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        got = _locked(descriptor, exclusively=False)
    finally:
        os.close(descriptor)
    return _lives(pid) if got is None else not got


def _locked(descriptor: int, *, exclusively: bool) -> bool | None:
    """Whether we have the lock now; None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _lives(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True


def _listens(url: str) -> bool:
    try:
        where = urlsplit(url)
        socket.create_connection((where.hostname or "", where.port or 80), timeout=KNOCK_S).close()
    except (OSError, ValueError):
        return False
    return True
