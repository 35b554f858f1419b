"""While an arm runs, what it writes goes to its copy of the working directory, also where a path is absolute."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from neuraldbg.capture.importing import ImportWatch
from neuraldbg.capture.torch.patches import Patches

WRITING = frozenset("wax+")
LOW_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
READS = ("listdir", "scandir", "stat", "access")  # not what looks at links themselves: they show the original
EDITS = ("truncate", "chmod", "utime")  # of a file that has to be our own
NAMES = {"mkdir": 1, "rmdir": 1, "remove": 1, "unlink": 1, "rename": 2, "replace": 2, "link": 2, "symlink": 2}
_REAL = {name: getattr(os, name) for name in ("unlink", "mkdir", "listdir", "chmod", "symlink")}
_OPEN = io.open
AUDITED = ("os.remove", "os.rmdir", "os.rename", "os.truncate", "os.chmod", "os.mkdir", "shutil.rmtree")


class Guard:
    """Sends paths of the original directory to its copy, makes links of the copy into files before they are written
    to, and refuses what would still reach the original."""

    def __init__(self, origin: str, scratch: str, spared: str) -> None:
        self._origin, self._scratch = os.path.realpath(origin), os.path.realpath(scratch)
        self._spared = os.path.realpath(spared)
        self._root = self._scratch.removesuffix(self._origin) or self._scratch  # what lies beside the copy is links
        self._patches = Patches()
        self._armed = False
        self._watches = (
            ImportWatch("torch", self._torch_imported),
            ImportWatch("safetensors", self._safetensors_imported),
            ImportWatch("sqlite3", self._sqlite_imported),
        )

    def install(self) -> None:
        for owner in (builtins, io):
            self._patches.replace(owner, "open", self._opening(owner.open))
        self._patches.replace(os, "open", self._opening_low(os.open))
        for name in READS:
            self._patches.replace(os, name, self._mapping(getattr(os, name), 1, self.mapped))
        for name in EDITS:
            self._patches.replace(os, name, self._mapping(getattr(os, name), 1, self.own))
        for name, paths in NAMES.items():
            self._patches.replace(os, name, self._mapping(getattr(os, name), paths, self.own_folder))
        for watch in self._watches:
            watch.install()
        self._armed = True
        sys.addaudithook(self._audit)

    def remove(self) -> None:
        self._armed = False
        for watch in self._watches:
            watch.remove()
        self._patches.close()

    # What opens files below Python, where nothing of the above is asked:

    def _torch_imported(self) -> None:
        self._second_is_written(sys.modules["torch"], "save")

    def _safetensors_imported(self) -> None:
        self._second_is_written(sys.modules["safetensors"], "serialize_file")

    def _second_is_written(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)
        self._patches.replace(owner, name, lambda obj, f, *args, **kw: real(obj, self.own(f), *args, **kw))

    def _sqlite_imported(self) -> None:
        sqlite: Any = sys.modules["sqlite3"]
        real = sqlite.connect
        self._patches.replace(sqlite, "connect", lambda database, *args, **kw: real(self.own(database), *args, **kw))

    # -- paths ---------------------------------------------------------------------------------------------------------

    def mapped(self, path: Any) -> Any:
        """The same place in the copy, for a path inside the original directory."""
        if not isinstance(path, str | os.PathLike):
            return path
        text = os.path.abspath(os.fspath(path))
        if not isinstance(text, str) or not _inside(text, self._origin):
            return path
        if _inside(text, self._scratch) or _inside(text, self._spared):
            return path
        return self._scratch + text[len(self._origin) :]

    def own_folder(self, path: Any) -> Any:
        """The path in the copy, after every folder above it that is a link has become a folder of links."""
        path = self.mapped(path)
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            return path
        text = os.path.abspath(os.fspath(path))
        if not _inside(text, self._root):
            return path
        above = self._root
        for part in os.path.relpath(os.path.dirname(text), self._root).split(os.sep):
            above = os.path.normpath(os.path.join(above, part))
            if self._leads_out(above):
                _open_up(above)
        return path

    def _leads_out(self, path: str) -> bool:
        """Whether it is a link of ours, to the original or to what lies beside it."""
        if not os.path.islink(path):
            return False
        target = os.path.realpath(path)
        beside = _inside(path, self._root) and not _inside(path, self._scratch) and not _inside(target, self._root)
        return beside or self._is_original(target)

    def own(self, path: Any) -> Any:
        """The path in the copy, after a link at its end has become a file."""
        path = self.own_folder(path)
        text = os.path.abspath(os.fspath(path)) if isinstance(path, str | os.PathLike) else None
        if isinstance(text, str) and self._leads_out(text) and os.path.isfile(target := os.path.realpath(text)):
            _REAL["unlink"](text)
            self._copy(target, text)
        return path

    def _copy(self, source: str, target: str) -> None:
        with _OPEN(source, "rb") as read, _OPEN(target, "wb") as made:
            shutil.copyfileobj(read, made)
        _REAL["chmod"](target, os.lstat(source).st_mode)

    def _is_original(self, real: str) -> bool:
        return _inside(real, self._origin) and not _inside(real, self._scratch) and not _inside(real, self._spared)

    # -- what is put in the place of functions -------------------------------------------------------------------------

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            find = self.own if isinstance(mode, str) and WRITING & set(mode) else self.mapped
            return real(find(file), mode, *args, **kwargs)

        return open

    def _opening_low(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def open(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            return real((self.own if flags & LOW_WRITING else self.mapped)(path), flags, *args, **kwargs)

        return open

    def _mapping(self, real: Callable[..., Any], paths: int, find: Callable[[Any], Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return real(*(find(each) for each in args[:paths]), *args[paths:], **kwargs)

        return call

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        """The last line of defence: whatever comes by another way."""
        if not self._armed or not (event in AUDITED or (event == "open" and _writes(args))):
            return
        path = args[0] if args else None
        if not isinstance(path, str):
            return
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        reached = os.path.realpath(path) if event == "open" else real
        if self._is_original(reached):
            raise PermissionError(f"neuraldbg: {path} lies in the working directory, which an experiment leaves alone")


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _open_up(link: str) -> None:
    """A folder of links to the entries stands where a link to the folder stood."""
    target = os.path.realpath(link)
    _REAL["unlink"](link)
    _REAL["mkdir"](link)
    for name in _REAL["listdir"](target):
        _REAL["symlink"](os.path.join(target, name), os.path.join(link, name))


def _writes(args: tuple[Any, ...]) -> bool:
    mode, flags = (*args[1:3], None, None)[:2]
    if isinstance(mode, str):
        return bool(WRITING & set(mode))
    return isinstance(flags, int) and bool(flags & LOW_WRITING)
