"""A real S3 API on loopback, and a gateway before it that can refuse connections."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HOST = Path(__file__).with_name("object_store_host.py")


@dataclass(frozen=True)
class ObjectStore:
    """Where it is, and who may use it. `url` is that of the bucket."""

    port: int
    key: str
    secret: str
    url: str = "s3://runs"

    def environment(self, *, port: int | None = None, secret: str | None = None) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": secret or self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    words = [sys.executable, "-W", "ignore", str(HOST)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield ObjectStore(**json.loads(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


class Gateway:
    """Hands connections on to a port of this machine. `refuse` is a store that is down; `open` one that is back."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.connections = self.bytes_back = 0
        self.port = 0
        self.open()

    def open(self) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        listening.listen(64)
        self.port = listening.getsockname()[1]
        self._listening = listening
        self._start(self._accept, listening)

    def refuse(self) -> None:
        listening, self._listening = self._listening, None
        for one in [*self._sockets, *([listening] if listening else [])]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets = []

    def close(self) -> None:
        self.refuse()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: object, *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments))  # type: ignore[arg-type]
        self._threads[-1].start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                near, _ = listening.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self.connections += 1
            self._sockets += [near, far]
            self._start(self._pump, near, far, False)
            self._start(self._pump, far, near, True)

    def _pump(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.bytes_back += len(data) if back else 0
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def gateway(store: ObjectStore) -> Iterator[Gateway]:
    made = Gateway(store.port)
    try:
        yield made
    finally:
        made.close()
