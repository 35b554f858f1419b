"""The user's side of the stack: which line called, and what the user calls an object."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from inspect import CO_OPTIMIZED
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from neuraldbg.capture.guard import attempt

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_RUNNER = _OURS + "script.py"  # runs the script: below it lie the frames of our command line
_UNSHARED = 3  # references to a frame's copy of its variables: the frame, a variable of ours, the argument
HOLDS_NOTHING = frozenset(
    (str, bytes, int, float, bool, type(None), ModuleType, FunctionType, BuiltinFunctionType, type)
)
_NOT_THE_USERS = ("torch", "keras", "tensorflow", "jax", "click")  # click calls our command line, and that the script
_LIST_LIMIT = 64  # entries of a user's list or dict that are searched for a name


def _prefix_of(framework: str) -> str:
    module = sys.modules.get(framework)
    file: str | None = getattr(module, "__file__", None)
    if not file:
        return os.sep + "nowhere" + os.sep
    folder, name = os.path.split(os.path.abspath(file))
    return folder + os.sep if name.startswith("__init__.") else os.path.join(folder, name)  # a script's own click.py


class Frames:
    """Finds user frames and remembers which code objects are the user's."""

    def __init__(self) -> None:
        self._skip = (_OURS, *map(_prefix_of, _NOT_THE_USERS))
        self.known_files: dict[str, bool] = {}  # whether each is the user's
        self._own: dict[str, bool] = {}  # by file: written by whoever runs the script
        self._cwd = os.getcwd() + os.sep
        self.unread: list[tuple[str, str]] = []  # files of the user's that were named, as shown and as opened
        self._named: set[str] = set()
        self._shown: dict[str, str] = {}  # those of absolute paths

    def is_user(self, code: CodeType) -> bool:
        return self.is_user_file(code.co_filename)

    def is_user_file(self, name: str) -> bool:
        known = self.known_files.get(name)
        if known is None:
            known = not (name.startswith("<frozen") or os.path.abspath(name).startswith(self._skip))
            known = known and not name.endswith((f"{os.sep}contextlib.py", f"{os.sep}functools.py"))
            self.known_files[name] = known
        return known

    def user_frame(self, depth: int = 1) -> FrameType | None:
        """The innermost frame that is neither ours nor torch's."""
        frame: FrameType | None = sys._getframe(depth)
        known = self.known_files  # asked of every frame of every call that is written down
        while frame is not None:
            file = frame.f_code.co_filename
            users = known.get(file)
            if users or (users is None and self.is_user_file(file)):
                return frame
            frame = frame.f_back
        return None

    def user_frames(self, depth: int = 1) -> Iterator[FrameType]:
        """The user's, innermost first, down to where the script was begun."""
        frame: FrameType | None = sys._getframe(depth)
        while frame is not None and frame.f_code.co_filename != _RUNNER:
            if self.is_user(frame.f_code):
                yield frame
            frame = frame.f_back

    def display(self, filename: str) -> str:
        """A file as a person would write it: relative to the working directory, or to site-packages."""
        known = self._shown.get(filename)
        if known is not None:
            return known
        path = os.path.abspath(filename)
        marker = f"{os.sep}site-packages{os.sep}"
        if marker in path:
            return path.split(marker, 1)[1]
        shown = path[len(self._cwd) :] if path.startswith(self._cwd) else os.path.basename(path)
        if os.path.isabs(filename):  # else the same name may be another file's once the user has changed the directory
            self._shown[filename] = shown
        if filename not in self._named:
            self._named.add(filename)
            self.unread.append((shown, filename))
        return shown

    def own_files(self) -> list[str]:
        """Files of the user's that were named so far, packages left out."""
        return sorted(self._named)

    def own_modules(self) -> list[tuple[str, dict[str, Any]]]:
        """What stands in modules that lie beside the script or in the working directory, packages and ours left out."""
        found = ((name, _held_by(module)) for name, module in list(sys.modules.items()) if name != "__main__")
        return [(name, held) for name, held in found if self._is_own(held.get("__file__"))]

    def files_of(self, kind: type | None) -> tuple[str, ...]:
        """The file in which the user wrote this class; none of other classes."""
        file = None if kind is None else _held_by(sys.modules.get(kind.__module__)).get("__file__")
        return (file,) if isinstance(file, str) and self._is_own(file) else ()

    def _is_own(self, file: object) -> bool:
        if not isinstance(file, str):
            return False
        known = self._own.get(file)
        if known is None:
            path, script = os.path.abspath(file), getattr(sys.modules.get("__main__"), "__file__", None)
            beside = os.path.dirname(os.path.abspath(script)) + os.sep if isinstance(script, str) else self._cwd
            known = self._own[file] = (
                path.startswith((self._cwd, beside)) and f"{os.sep}site-packages{os.sep}" not in path
            ) and self.is_user_file(file)
        return known

    def line(self, depth: int = 1) -> str | None:
        """`train.py:42` of the innermost user frame."""
        frame = self.user_frame(depth + 1)
        return None if frame is None else f"{self.display(frame.f_code.co_filename)}:{frame.f_lineno}"

    def names_of(self, target: object, depth: int = 1) -> list[str]:
        """What user code calls `target`, best first: outer frames before inner ones (there names are widest known),
        and in each a plain variable before an attribute before an entry of a list or dict."""
        names: list[str] = []
        searched: set[int] = set()  # ids of variables of modules: functions that call each other often share them
        for frame in reversed(list(self.user_frames(depth + 1))):
            plain, dotted, entries = found = ([], [], [])  # type: tuple[list[str], list[str], list[str]]
            _search(frame, target, found, searched)
            let_go(frame)
            names += plain + dotted + entries
        return list(dict.fromkeys(names))


def _held_by(module: object) -> dict[str, Any]:
    """Its variables, without asking the module itself: a lazy one would be loaded by that."""
    found = ModuleType.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else None
    return found if isinstance(found, dict) else {}


def let_go(frame: FrameType) -> None:
    """Before Python 3.13 a look at f_locals leaves a copy of the variables in a function's frame, and `del x` in the
    user's code would free nothing. A copy that somebody else holds (`locals()` returns it) is not touched."""
    if frame.f_code.co_flags & CO_OPTIMIZED:
        held = frame.f_locals
        if type(held) is dict and sys.getrefcount(held) <= _UNSHARED:
            held.clear()


def _search(
    frame: FrameType, target: object, found: tuple[list[str], list[str], list[str]], searched: set[int]
) -> None:
    plain, dotted, entries = found
    theirs, outer = frame.f_locals, frame.f_globals
    scopes = [] if id(outer) in searched else [outer]
    searched.add(id(outer))
    if theirs is not outer:
        scopes.append(theirs)
    for scope in scopes:
        for name, value in list(scope.items()):
            if value is target:
                if name[:2] != "__":
                    (entries if name in ("self", "cls") else plain).append(name)
                continue
            kind = type(value)
            if kind not in HOLDS_NOTHING and not issubclass(kind, type) and name[:2] != "__":
                attempt(partial(_search_inside, name, value, target, (dotted, entries)))  # attribute access may raise


def _key(key: object) -> str:
    return repr(key) if isinstance(key, str | int) else "..."


def _search_inside(name: str, value: Any, target: object, found: tuple[list[str], list[str]]) -> None:
    dotted, entries = found
    kind = type(value)
    if kind is list or kind is tuple:
        for i, item in enumerate(value[:_LIST_LIMIT]):
            if item is target:
                entries.append(f"{name}[{i}]")
    elif kind is dict:
        for key, item in list(value.items())[:_LIST_LIMIT]:
            if item is target:
                entries.append(f"{name}[{_key(key)}]")
    elif kind.__module__ not in ("builtins", "numpy", "typing") and not isinstance(value, type):
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and len(attributes) < 512 and not name.startswith("_"):
            for key, item in list(attributes.items()):
                if item is target:
                    dotted.append(f"{name}.{key}")
                elif type(item) is list and len(item) <= _LIST_LIMIT:
                    for i, entry in enumerate(item):
                        if entry is target:
                            entries.append(f"{name}.{key}[{i}]")
