"""Files that only grow: plain `write()`, and after a failed one a new file, so that nothing follows a torn chunk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

SUFFIX: Final = ".ndt"
_ELSEWHERE: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # flags that not every system has
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | _ELSEWHERE


class GrowingFile:
    """One stream of chunks, in numbered files `<stem>-<number>.ndt` of which only the last is open."""

    def __init__(self, directory: Path, stem: str, header: bytes, *, first: int = 0) -> None:
        self.stem = stem
        self.path: Path | None = None
        self.size = 0  # of the open file
        self.closed: list[tuple[Path, int]] = []  # oldest first
        self._directory = directory
        self._header = memoryview(header)
        self._number = first
        self._fd = -1
        self._chunks = 0

    @property
    def total_bytes(self) -> int:
        return self.size + sum(size for _, size in self.closed)

    def write(self, chunk: memoryview) -> None:
        """Appends a whole chunk or raises OSError; a torn one ends its file."""
        try:
            if self._fd < 0:
                self._open()
            self._write_all(chunk)
            self._chunks += 1
        except OSError:
            self._leave_torn()
            raise

    def rotate(self) -> None:
        """The next chunk goes to a new file."""
        if self.path is not None:
            self.closed.append((self.path, self.size))
        self.close()

    def discard(self) -> None:
        """Removes every file of this stream: what they held stands elsewhere now."""
        self.rotate()
        for path, _ in self.closed:
            with suppress(OSError):
                path.unlink()
        self.closed.clear()

    def remove_oldest(self) -> Path | None:
        """Deletes the oldest closed file; None where there is none."""
        if not self.closed:
            return None
        path, _ = self.closed.pop(0)
        with suppress(OSError):
            path.unlink()
        return path

    def close(self) -> None:
        fd, self._fd, self.path, self.size, self._chunks = self._fd, -1, None, 0, 0
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _open(self) -> None:
        path = self._directory / f"{self.stem}-{self._number:06d}{SUFFIX}"
        self._fd = os.open(path, _FLAGS, 0o644)
        self._number += 1
        self.path = path
        self._write_all(self._header)

    def _write_all(self, data: memoryview) -> None:
        while data:
            written = os.write(self._fd, data)  # a short write is normal near a full disk; EINTR is Python's business
            self.size += written
            data = data[written:]

    def _leave_torn(self) -> None:
        path, empty = self.path, self._chunks == 0
        if path is not None and empty:
            self.close()
            with suppress(OSError):
                path.unlink()
        else:
            self.rotate()
