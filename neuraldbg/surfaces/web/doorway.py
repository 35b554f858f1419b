"""The port of a page, and beside a training a server that costs nothing until somebody comes.

Only the standard library is imported here: the listening socket is bound at once, so that its address can be said; the
web packages are imported when the first connection waits in it.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import select
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.control.server_file import ServerFile
from neuraldbg.errors import NeuralDbgError, UsageError

if TYPE_CHECKING:
    from neuraldbg.surfaces.web.serving import Service

MOST_PORTS = 100
BACKLOG = 128
TURN_S = 5e-4


def answer_promptly() -> None:
    """Of a process of our own: a request does not wait 5 ms, each time it waits, for a thread that analyses."""
    sys.setswitchinterval(TURN_S)


class Doorway:
    """A bound and listening socket. If the port is taken, the next free one. `behind_proxy`: everybody who comes needs
    the token, the owner's processes too, since one of them may be a tunnel."""

    def __init__(self, host: str, port: int, *, behind_proxy: bool = False) -> None:
        self.wanted = port
        self.behind_proxy = behind_proxy
        self.token = secrets.token_urlsafe(24)
        self.listener, self.host = _listen(host, port)
        self.port: int = self.listener.getsockname()[1]
        self._told: ServerFile | None = None

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        name = {"0.0.0.0": socket.gethostname(), "[::]": socket.gethostname()}.get(name, name)
        return f"http://{name}:{self.port}"

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return self.url + ("" if self.open_to_owner else f"/?token={self.token}")

    def tell(self, run_dir: Path) -> None:
        """Says in the run directory where its server is, until the door is closed: a paused trainer reads it."""
        self._told = ServerFile(run_dir, self.url, None if self.open_to_owner else self.token)

    @property
    def open_to_owner(self) -> bool:
        """Whether processes of the same user need no token: on loopback, where the kernel says whose a socket is."""
        loopback = ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        known = sys.platform == "linux" and os.access("/proc/net/tcp", os.R_OK)
        return loopback and known and not self.behind_proxy

    @property
    def line(self) -> str:
        """Where the page is, in one line."""
        taken = f"port {self.wanted} is taken, " if self.wanted not in (0, self.port) else ""
        return f"{taken}serving on {self.address}"

    def tell_no_more(self) -> None:
        if self._told is not None:
            self._told.remove()
            self._told = None

    def close(self) -> None:
        self.tell_no_more()
        self.listener.close()


def _listen(host: str, port: int) -> tuple[socket.socket, str]:
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot serve on {host}: {error}; --host 127.0.0.1 always works") from None
    for candidate in range(port, min(port + MOST_PORTS, 65_536)) if port else (0,):
        # by its number: asyncio switches Nagle's algorithm off only where it is said, which saves 40 ms an answer
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((where[0], candidate, *where[2:]))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                why = f"cannot serve on {host} port {candidate}: {error.strerror}"
                raise UsageError(f"{why}; choose others with --host and --port") from None
            continue
        return listener, str(where[0])
    raise UsageError(f"no free port from {port} to {port + MOST_PORTS - 1}; choose another with --port")


class LazyService:
    """Serves one run from a thread, once somebody knocks."""

    def __init__(self, door: Doorway, run_dir: Path, settings: dict[str, Any], say: Callable[[str], None]) -> None:
        self._door, self._run_dir, self._settings, self._say = door, run_dir, settings, say
        self._wake_read, self._wake = socket.socketpair()
        self._lock = threading.Lock()
        self._closed = False
        self._service: Service | None = None
        door.tell(run_dir)
        self._thread = threading.Thread(target=self._wait, name="neuraldbg-page", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return self._door.address

    def _wait(self) -> None:
        ready, _, _ = select.select([self._door.listener, self._wake_read], [], [])
        if self._wake_read in ready:
            return
        try:
            service = self._made()
        except (ImportError, NeuralDbgError) as error:
            self._say(f"the page cannot be served: {error}")
            self._door.close()
            return
        with self._lock:
            if self._closed:
                return
            self._service = service
        service.run()

    def _made(self) -> Service:
        from neuraldbg.surfaces.web.asking import Settings as Chosen
        from neuraldbg.surfaces.web.serving import Service as Made

        return Made(self._door, [self._run_dir], Chosen(**self._settings))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._service is not None:
                self._service.stop()
        with suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(10.0)
        for each in (self._wake, self._wake_read, self._door):
            each.close()
