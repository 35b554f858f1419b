"""JSON objects, one a line, over a socket; and where a trainer's socket is, as far as that can be believed."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neuraldbg.errors import ChannelError

LONGEST_REQUEST = 1 << 20
LONGEST_ANSWER = 16 << 20
PIECE = 1 << 16


class Line:
    """One end of a connection. Reading and writing are for one thread each; anybody may hang up."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.settimeout(None)
        self._heard = bytearray()
        self._lock = threading.Lock()

    def read(self, longest: int = LONGEST_REQUEST, *, within_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None at the end. TimeoutError when it is not whole in time."""
        until = None if within_s is None else time.monotonic() + within_s
        looked = 0
        while (at := self._heard.find(b"\n", looked)) < 0:
            looked = len(self._heard)
            if looked > longest:
                raise ChannelError("a message without an end")
            if until is not None:
                self.socket.settimeout(max(1e-3, until - time.monotonic()))
            piece = self.socket.recv(PIECE)
            if not piece:
                return None
            self._heard += piece
        if until is not None:
            self.socket.settimeout(None)
        text = bytes(self._heard[:at])
        del self._heard[: at + 1]
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ChannelError("a message that is no object")
        return found

    def write(self, message: Mapping[str, Any]) -> None:
        self.send(encoded(message))

    def send(self, data: bytes) -> None:
        with self._lock:
            self.socket.sendall(data + b"\n")

    def hang_up(self) -> None:
        """At once, whoever reads or writes now: they find the line dead."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        with suppress(OSError):
            self.socket.close()


def encoded(message: Any) -> bytes:
    return json.dumps(message, default=str).encode()


def dialled(address: Mapping[str, Any], timeout_s: float) -> Line:
    """A line to the address that a run directory tells. The directory may come from anybody: only a socket that a
    process of this very user has made is called, and never another machine. OSError where there is none."""
    if hasattr(socket, "AF_UNIX"):
        path = address["unix"]
        if not isinstance(path, str) or not is_ours(path):
            raise PermissionError(f"{path!r} is no socket of this user")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        where: Any = path
    else:
        host, port = address["tcp"]
        if not ipaddress.ip_address(host).is_loopback:
            raise PermissionError(f"{host} is another machine")
        where = (host, int(port))
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(where)
    except BaseException:
        connection.close()
        raise
    return Line(connection)


def is_ours(path: str) -> bool:
    """Whether it is a socket of this user in a folder that only this user can reach."""
    found, folder = os.lstat(path), os.lstat(Path(path).parent)
    private = stat.S_ISDIR(folder.st_mode) and not folder.st_mode & 0o077
    return stat.S_ISSOCK(found.st_mode) and private and found.st_uid == folder.st_uid == os.getuid()
