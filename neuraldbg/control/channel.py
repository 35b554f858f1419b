"""The line between trainer and viewer: requests as JSON lines over a Unix socket that only this user can reach.

The trainer listens in one sleeping thread. It dies with the trainer and never stops it: whatever goes wrong on the line
is answered on the line. Where there are no Unix sockets, loopback TCP with a token takes their place.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from neuraldbg.control.line import LONGEST_ANSWER, Line, dialled, encoded
from neuraldbg.errors import ChannelClosed, ChannelError, ChannelSilent, NeuralDbgError, UsageError

CONTROL_FILE = "control.json"
HELLO_S = 5.0  # a trainer that lives greets at once; one that was stopped would never
LONGEST_HELLO = 4096
PATIENCE_S = {"state": 3.0, "tensor": 35.0}  # tensors wait for the held thread itself
ANSWER_S = 10.0  # a thread of ours answers, which may have to wait for one long operation of the training
MOST_LINES = 32
MOST_WAITING = 2048  # events that somebody has not read yet
STALLED_S = 5.0  # nothing was read for so long, and so many wait: it is dropped
MOST_UNANSWERED = 64  # requests to a trainer that says nothing: more are not sent
PART = 1 << 20  # bytes; a longer list is answered in parts
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
        self._lines: dict[Line, _Outbox | None] = {}  # None until it has said its token
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
                with suppress(OSError, RuntimeError):  # RuntimeError: no more threads
                    connection, _ = self._listener.accept()
                    self._welcome(Line(connection))

    def _welcome(self, line: Line) -> None:
        with self._lock:
            full = len(self._lines) >= MOST_LINES
            if not full:
                self._lines[line] = None
        if full:
            line.close()
            return
        try:
            threading.Thread(target=self._converse, args=(line,), name="neuraldbg-line", daemon=True).start()
        except RuntimeError:
            self._part(line)
            raise

    def _part(self, line: Line) -> None:
        with self._lock:
            outbox = self._lines.pop(line, None)
        if outbox is not None:
            outbox.close()
        line.close()

    def _converse(self, line: Line) -> None:
        """One thread a connection: a request that waits for the training thread holds up nobody else."""
        try:
            hello = line.read(LONGEST_HELLO, within_s=HELLO_S)
            if hello is None or not secrets.compare_digest(str(hello.get("token")).encode(), self._token.encode()):
                line.write({"error": "ChannelError", "message": "wrong token"})
                return
            line.write({"ok": True, "pid": self._pid})
            outbox = _Outbox(line)  # before the lock: publish takes it too, and must not wait for a thread to start
            with self._lock:
                self._lines[line] = outbox
            while not self._closed and (request := line.read()) is not None:
                for data in _in_parts(self._answer(request)):
                    line.send(data)
        except (OSError, ValueError, RuntimeError, ChannelError):
            pass
        finally:
            self._part(line)

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        number = request.get("id")
        try:
            arguments = request.get("arguments") or {}
            if not isinstance(arguments, dict):
                raise UsageError("the arguments of a request are an object")
            return {"id": number, "result": self._handle(str(request.get("verb")), arguments)}
        except NeuralDbgError as error:
            return {"id": number, "error": type(error).__name__, "message": str(error), **_details(error)}
        except Exception as error:  # noqa: BLE001  a bug of ours must not end the conversation
            return {"id": number, "error": "ChannelError", "message": f"{type(error).__name__}: {error}"}

    def publish(self, event: Mapping[str, Any]) -> None:
        """To everyone who listens, without waiting for anybody. Somebody who does not read is dropped."""
        if self._closed:
            return
        with self._lock:
            listening = [outbox for outbox in self._lines.values() if outbox is not None]
        for outbox in listening:
            outbox.put({"published": dict(event)})

    # -- the end -------------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """In a forked child: the sockets are the parent's."""
        if not self._closed:
            self._closed = True
            for each in (self._listener, self._wake, self._wake_read, *(line.socket for line in self._lines)):
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
            lines = list(self._lines)
        for line in lines:
            self._part(line)
        for each in (self._listener, self._wake, self._wake_read):
            with suppress(OSError):
                each.close()
        self._selector.close()
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Outbox:
    """The events on their way to one listener, sent by a thread of its own: the training only lays them down."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._began_s: float | None = None  # when the message was begun that is on its way now
        self._waiting: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name="neuraldbg-events", daemon=True).start()

    def put(self, message: Mapping[str, Any]) -> None:
        """Never waits. One who reads too slowly gets the newest, one who does not read at all is dropped."""
        if self._waiting.qsize() >= MOST_WAITING:
            if self._began_s is not None and time.monotonic() - self._began_s > STALLED_S:
                self._line.hang_up()
                return
            with suppress(queue.Empty):
                self._waiting.get_nowait()
        self._waiting.put(message)

    def _send(self) -> None:
        try:
            while (message := self._waiting.get()) is not None:
                self._began_s = time.monotonic()
                self._line.write(message)
                self._began_s = None
        except (OSError, ValueError):
            self._line.hang_up()

    def close(self) -> None:
        self._waiting.put(None)


def _in_parts(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """An answer as the lines it is sent in: a long list comes a part at a time, the last one with its end."""
    whole = encoded(answer)
    found = answer.get("result")
    if len(whole) <= PART or not isinstance(found, list):
        yield _fitting(whole, answer)
        return
    part: list[Any] = []
    size = 0
    for item in found:
        length = len(encoded(item))
        if part and size + length > PART:
            yield _fitting(encoded({"id": answer.get("id"), "part": part}), answer)
            part, size = [], 0
        part.append(item)
        size += length
    yield _fitting(encoded({**answer, "result": part}), answer)


def _fitting(data: bytes, answer: Mapping[str, Any]) -> bytes:
    if len(data) <= LONGEST_ANSWER:
        return data
    return encoded({"id": answer.get("id"), "error": "ChannelError", "message": "the answer is too long to be sent"})


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
        self._number = self._unanswered = 0
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
            if self._unanswered >= MOST_UNANSWERED:
                raise ChannelSilent(f"{self._unanswered} requests wait already: is the training process stopped?")
            self._unanswered += 1
            self._line.write({"id": number, "verb": verb, "arguments": arguments})
            patience_s = min(self._timeout_s, PATIENCE_S.get(verb, ANSWER_S))
            if not done.wait(patience_s):
                raise ChannelSilent(f"no answer to {verb} in {patience_s:g} s: is the training process stopped?")
        except OSError as error:
            raise ChannelClosed("the training process is gone") from error
        finally:
            self._waiting.pop(number, None)
        if not box:
            raise ChannelClosed("the training process is gone")
        if "error" in box:
            raise ChannelError(str(box.get("message", "refused")), kind=str(box["error"]), details=box)
        return [*box["parts"], *box["result"]] if "parts" in box else box.get("result")

    def _read(self) -> None:
        try:
            while (message := self._line.read(LONGEST_ANSWER)) is not None:
                self._take(message)
        except (OSError, ValueError, TypeError, ChannelError):
            pass
        self.closed = True
        for done, _ in list(self._waiting.values()):
            done.set()

    def _take(self, message: dict[str, Any]) -> None:
        if isinstance(message.get("published"), dict):
            if self._on_event is not None:
                self._on_event(message["published"])
            return
        if "part" not in message:
            self._unanswered -= 1
        waiting = self._waiting.get(message.get("id", -1))
        if waiting is None:
            return
        done, box = waiting
        if "part" in message:
            box.setdefault("parts", []).extend(message["part"])
        else:
            box.update(message)
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


def _connected(run_dir: Path) -> Line:
    nobody = f"no training process is attached to {run_dir.name} (it has ended, or was started with --headless)"
    line: Line | None = None
    try:
        address = json.loads((run_dir / CONTROL_FILE).read_text(encoding="utf-8"))
        line = dialled(address, HELLO_S)
        line.write({"token": address["token"]})
        hello = line.read(LONGEST_HELLO, within_s=HELLO_S)
        if hello is None or not hello.get("ok"):
            raise ChannelClosed(f"the training process of {run_dir.name} refused us")
    except BaseException as error:
        if line is not None:
            line.close()
        if isinstance(error, TimeoutError | BlockingIOError):  # BlockingIOError: so many wait already
            raise ChannelSilent(f"the training process of {run_dir.name} does not answer: is it stopped?") from error
        if isinstance(error, OSError | ValueError | LookupError | TypeError):
            raise ChannelClosed(nobody) from error
        raise
    return line


def _details(error: NeuralDbgError) -> dict[str, Any]:
    """Where in a text, and what was meant: what a page needs to point at it."""
    return {name: getattr(error, name) for name in ("column", "why", "nearest") if hasattr(error, name)}
