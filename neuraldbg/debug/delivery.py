"""Work that must not hold up a training: done by one thread, in order, with a bounded queue."""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from neuraldbg.analysis.findings import strict
from neuraldbg.capture.guard import attempt_or_why
from neuraldbg.errors import ConfigError

log = logging.getLogger("neuraldbg")
WAITING: Final = 256  # that may wait before new ones are dropped and counted
TIMEOUT_S: Final = 5.0
ATTEMPTS: Final = 3
PAUSE_S: Final = 0.5  # before the second attempt; twice that before the third
CLOSING_S: Final = 10.0  # that `close` waits for what is under way
RETRIED: Final = (408, 425, 429, 500, 502, 503, 504)


class Background:
    """One thread, from the first job on until `close`, which the end of the process is too. A job that fails is told of
    once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._pid = 0
        self.dropped = self.failed = self.done = 0
        self.why: str | None = None  # of the last failure

    def do(self, job: Callable[[], None]) -> bool:
        """False where it was dropped."""
        with self._lock:
            if self._closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
                self._pid = os.getpid()
                atexit.register(self.close)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.dropped += 1
            return False
        return True

    def close(self) -> None:
        """Waits a while for what is under way; what has not begun by then is dropped."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._pid:  # a forked child has the queue, and no thread
            return
        deadline = time.monotonic() + CLOSING_S
        while time.monotonic() < deadline:
            try:
                self._jobs.put(None, timeout=0.05)
                break
            except queue.Full:
                continue
        thread.join(max(deadline - time.monotonic(), 0.1))
        self.dropped += self._jobs.qsize()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            _, why = attempt_or_why(job)
            if why is None:
                self.done += 1
                continue
            self.failed, self.why = self.failed + 1, why
            if self.failed == 1:
                log.warning("%s: %s; training continues, further failures are counted", self._name, why)


class Delivery(Background):
    """Hands every alert to each of `ways`."""

    def __init__(self, ways: Sequence[Callable[[dict[str, Any]], None]]) -> None:
        super().__init__("neuraldbg-alerts")
        self.ways = list(ways)
        for way in self.ways:
            if isinstance(way, Webhook):
                way.gives_up = lambda: self._closed and self._jobs.qsize() > 1

    def send(self, alert: dict[str, Any]) -> None:
        for way in self.ways:
            self.do(lambda way=way: way(alert))  # type: ignore[misc]


class AlertFile:
    """One JSON object per line, appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, alert: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(strict(alert)) + "\n")


class Webhook:
    """POST of the alert as JSON. What the server cannot take now is tried again; what it refuses is not."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S, attempts: int = ATTEMPTS) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"alert_webhook is a http or https address, not {url!r}")
        self.url, self.timeout_s, self.attempts = url, timeout_s, attempts
        self.pause_s = PAUSE_S
        self.gives_up: Callable[[], bool] = lambda: False

    def __call__(self, alert: dict[str, Any]) -> None:
        body = json.dumps(strict(alert)).encode()
        for attempt in range(self.attempts):
            request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"}, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                    answer.read(1024)
                return
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in RETRIED or self._last(attempt):
                    raise OSError(f"the webhook answered {error.code} {error.reason}") from None
            except (OSError, HTTPException) as error:
                if self._last(attempt):
                    raise OSError(f"the webhook cannot be reached: {error}") from None
            time.sleep(self.pause_s * 2**attempt)

    def _last(self, attempt: int) -> bool:
        return attempt + 1 >= self.attempts or self.gives_up()
