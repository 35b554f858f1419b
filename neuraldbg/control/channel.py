"""The line between trainer and viewer: requests as JSON lines over a Unix socket that only this user can reach.

The trainer listens in one sleeping thread. It dies with the trainer and never stops it: whatever goes wrong on the line
is answered on the line. Where there are no Unix sockets, loopback TCP with a token takes their place.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from neuraldbg.errors import ChannelClosed, ChannelError, NeuralDbgError

CONTROL_FILE = "control.json"
LONGEST_LINE = 1 << 20
HELLO_S = 5.0  # a trainer that lives greets at once; one that was stopped would never
ANSWER_S = 10.0  # a thread of ours answers, which may have to wait for one long operation of the training
BY_THE_TRAINING = ("tensor",)  # these wait for the held thread itself
Handler = Callable[[str, Mapping[str, Any]], Any]


class ChannelServer:
    """`handle(verb, arguments)` runs in a thread of ours; what it raises of NeuralDbgError goes back as its name and
    text."""

    def __init__(self, handle: Handler, run_dir: Path) -> None:
        self._handle = handle
        self._pid = os.getpid()
        self._file = run_dir / CONTROL_FILE
        self._folder: Path | None = None
        self._token = secrets.token_hex(16)
        self._listener, address = self._listen()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake = socket.socketpair()
        self._listeners: dict[socket.socket, _Line] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._write_address(address)
        self._thread = threading.Thread(target=self._serve, name="neuraldbg-control", daemon=True)
        self._thread.start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._let_go)

    def _listen(self) -> tuple[socket.socket, dict[str, Any]]:
        if hasattr(socket, "AF_UNIX"):
            self._folder = Path(tempfile.mkdtemp(prefix="neuraldbg-"))  # 0700
            path = self._folder / "control"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
            path.chmod(0o600)
            address: dict[str, Any] = {"unix": str(path)}
        else:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.bind(("127.0.0.1", 0))
            address = {"tcp": list(listener.getsockname())}
        listener.listen(16)
        return listener, address

    def _write_address(self, address: dict[str, Any]) -> None:
        text = json.dumps({**address, "token": self._token, "pid": self._pid})
        draft = self._file.with_suffix(f".{self._pid}")
        with suppress(OSError):
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            os.replace(draft, self._file)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        while not self._closed:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_read:
                    continue
                with suppress(OSError):
                    connection, _ = self._listener.accept()
                    line = _Line(connection)
                    threading.Thread(target=self._converse, args=(line,), name="neuraldbg-line", daemon=True).start()

    def _converse(self, line: _Line) -> None:
        """One thread a connection: a request that waits for the training thread holds up nobody else."""
        try:
            hello = line.read()
            if hello is None or not secrets.compare_digest(str(hello.get("token")), self._token):
                line.write({"error": "ChannelError", "message": "wrong token"})
                return
            with self._lock:
                self._listeners[line.socket] = line
            line.write({"ok": True, "pid": self._pid})
            while not self._closed and (request := line.read()) is not None:
                line.write(self._answer(request))
        except (OSError, ValueError, ChannelError):
            pass
        finally:
            with self._lock:
                self._listeners.pop(line.socket, None)
            line.close()

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        number = request.get("id")
        try:
            arguments = request.get("arguments") or {}
            return {"id": number, "result": self._handle(str(request.get("verb")), arguments)}
        except NeuralDbgError as error:
            return {"id": number, "error": type(error).__name__, "message": str(error), **_details(error)}
        except Exception as error:  # noqa: BLE001  a bug of ours must not end the conversation
            return {"id": number, "error": "ChannelError", "message": f"{type(error).__name__}: {error}"}

    def publish(self, event: Mapping[str, Any]) -> None:
        """To everyone who listens. Somebody who does not read is dropped."""
        with self._lock:
            lines = list(self._listeners.values())
        for line in lines:
            try:
                line.write({"published": dict(event)})
            except OSError:
                line.close()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """In a forked child: the sockets are the parent's."""
        if not self._closed:
            self._closed = True
            for each in (self._listener, self._wake, self._wake_read, *self._listeners):
                with suppress(OSError):
                    each.close()

    def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(2.0)
        with self._lock:
            lines = list(self._listeners.values())
        for line in lines:
            line.close()
        for each in (self._listener, self._wake, self._wake_read):
            with suppress(OSError):
                each.close()
        self._selector.close()
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Line:
    """JSON objects, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.settimeout(None)
        self._reader = connection.makefile("rb")
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any] | None:
        text = self._reader.readline(LONGEST_LINE)
        if not text:
            return None
        if not text.endswith(b"\n"):
            raise ChannelError("a message without an end")
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ChannelError("a message that is no object")
        return found

    def write(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message, default=str).encode() + b"\n"
        with self._lock:
            self.socket.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._reader.close()
            self.socket.close()


class ChannelClient:
    """The viewer's end. Every call is a request and its answer; what the trainer publishes meanwhile goes to
    `on_event`."""

    def __init__(
        self, run_dir: Path, *, on_event: Callable[[dict[str, Any]], None] | None = None, timeout_s: float = 35.0
    ) -> None:
        self._line = _connected(run_dir)
        self._on_event = on_event
        self._timeout_s = timeout_s
        self._waiting: dict[int, tuple[threading.Event, dict[str, Any]]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self.closed = False
        self._thread = threading.Thread(target=self._read, name="neuraldbg-channel", daemon=True)
        self._thread.start()

    def call(self, verb: str, **arguments: Any) -> Any:
        """ChannelClosed when the trainer is gone; ChannelError with `.kind` for what the trainer refused."""
        done = threading.Event()
        box: dict[str, Any] = {}
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = (done, box)
        try:
            if self.closed:
                raise ChannelClosed("the training process is gone")
            self._line.write({"id": number, "verb": verb, "arguments": arguments})
            patience_s = self._timeout_s if verb in BY_THE_TRAINING else min(self._timeout_s, ANSWER_S)
            if not done.wait(patience_s):
                raise ChannelError(f"no answer to {verb} in {patience_s:g} s: is the training process stopped?")
        except OSError as error:
            raise ChannelClosed("the training process is gone") from error
        finally:
            self._waiting.pop(number, None)
        if not box:
            raise ChannelClosed("the training process is gone")
        if "error" in box:
            raise ChannelError(box.get("message", "refused"), kind=box["error"], details=box)
        return box.get("result")

    def _read(self) -> None:
        try:
            while (message := self._line.read()) is not None:
                if "published" in message:
                    if self._on_event is not None:
                        self._on_event(message["published"])
                    continue
                waiting = self._waiting.get(message.get("id", -1))
                if waiting is not None:
                    waiting[1].update(message)
                    waiting[0].set()
        except (OSError, ValueError, ChannelError):
            pass
        self.closed = True
        for done, _ in list(self._waiting.values()):
            done.set()

    def close(self) -> None:
        self.closed = True
        self._line.close()
        self._thread.join(2.0)


@contextmanager
def channel(run_dir: Path) -> Iterator[ChannelClient]:
    client = ChannelClient(run_dir)
    try:
        yield client
    finally:
        client.close()


def _connected(run_dir: Path) -> _Line:
    try:
        address = json.loads((run_dir / CONTROL_FILE).read_text(encoding="utf-8"))
        line = _dialled(address)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChannelClosed(f"no training process is attached to {run_dir.name}") from error
    try:
        line.socket.settimeout(HELLO_S)
        line.write({"token": address["token"]})
        hello = line.read()
        line.socket.settimeout(None)
    except TimeoutError as error:
        line.close()
        raise ChannelClosed(f"the training process of {run_dir.name} does not answer: is it stopped?") from error
    except (OSError, ValueError, KeyError, ChannelError) as error:
        line.close()
        raise ChannelClosed(f"no training process is attached to {run_dir.name}") from error
    if hello is None or not hello.get("ok"):
        line.close()
        raise ChannelClosed(f"the training process of {run_dir.name} refused us")
    return line


def _dialled(address: Mapping[str, Any]) -> _Line:
    if "unix" not in address:
        return _Line(socket.create_connection(tuple(address["tcp"]), timeout=HELLO_S))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(HELLO_S)
        connection.connect(address["unix"])
    except BaseException:
        connection.close()
        raise
    return _Line(connection)


def _details(error: NeuralDbgError) -> dict[str, Any]:
    """Where in a text, and what was meant: what a page needs to point at it."""
    return {name: getattr(error, name) for name in ("column", "why", "nearest") if hasattr(error, name)}
