"""Which layers the user wants to see: globs, regexes, or class names."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from neuraldbg.errors import UsageError


def layer_filter(patterns: tuple[str, ...]) -> Callable[[str, str], bool] | None:
    """A test of (path, class name); None when everything is wanted."""
    if not patterns:
        return None
    tests = [_one(pattern) for pattern in patterns]
    return lambda path, kind: any(test(path, kind) for test in tests)


def _one(pattern: str) -> Callable[[str, str], bool]:
    if any(sign in pattern for sign in "^$()|+\\") or ".*" in pattern:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--layers {pattern!r} is no regular expression: {error}") from error
        return lambda path, _: expression.search(path) is not None
    return lambda path, kind: fnmatchcase(path, pattern) or path.startswith(pattern + ".") or kind == pattern
