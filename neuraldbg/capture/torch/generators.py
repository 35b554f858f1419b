"""States of Python's and NumPy's random generators, asked for again only where they have moved since the last time.

Each is 2.5 KB that become 625 objects, or a dictionary of arrays: 10 to 35 us, and mostly the same as at the last pass.
CPython keeps them in the objects themselves, where they are compared as bytes: the words of the generator and, of
NumPy, the second of a pair of normal numbers that waits for its turn.
"""

from __future__ import annotations

import _random
import random
import sys
from collections.abc import Callable
from ctypes import string_at
from typing import Any, Final

import numpy as np
import numpy.random

Place = tuple[int, int]  # address, bytes

_HEAD: Final = object.__basicsize__  # of an object: how often it is held, and its type
_TWISTER: Final = 4 * 625  # bytes of the words of a Mersenne Twister and of its place among them
_Python, _Legacy, _Twister = random.Random, np.random.RandomState, np.random.MT19937


class _Last:
    """A state, and the bytes it was made of."""

    def __init__(self) -> None:
        self._last: tuple[list[Any], Any] = ([], None)

    def state(self, look: Callable[[], list[Any]], take: Callable[[], Any]) -> Any:
        seen, (known, state) = look(), self._last
        if seen != known:
            state = take()
            if seen == look():  # else another thread has drawn in between
                self._last = (seen, state)
        return state


class LastStates:
    """One for all passes of a training. What it hands out is never written to."""

    def __init__(self) -> None:
        self._python, self._numpy = _Last(), _Last()
        self._inst: Any = getattr(random.getstate, "__self__", None)
        self._readable = _readable()
        self._legacy: Any = None
        self._bits: Any = None
        self._places: list[Place] = []

    def python(self) -> Any:
        take = random.getstate
        known = getattr(take, "__self__", None) is self._inst and type(self._inst) is _Python
        if not known or not self._readable:
            return take()
        return self._python.state(self._of_python, take)

    def numpy(self) -> Any:
        take = numpy.random.get_state
        own = getattr(take, "__self__", None)
        bits = getattr(own, "_bit_generator", None)
        if not self._readable or type(own) is not _Legacy or type(bits) is not _Twister:
            return take()
        if own is not self._legacy or bits is not self._bits:  # as `set_bit_generator` puts another in its place
            self._legacy, self._bits = own, bits
            self._places = [_within(own, _Legacy), (bits.ctypes.state_address, _TWISTER)]
        return self._numpy.state(self._of_numpy, take)

    def _of_python(self) -> list[Any]:
        return [string_at(*_within(self._inst, _random.Random)), self._inst.gauss_next]

    def _of_numpy(self) -> list[Any]:
        return [string_at(*place) for place in self._places]


def _within(owner: Any, kind: type) -> Place:
    """What C keeps in an object of this class."""
    return id(owner) + _HEAD, kind.__basicsize__ - _HEAD


def _readable() -> bool:
    """Whether generators of our own are seen to move where they are looked for."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    python, legacy = _Python(0), _Legacy(0)
    bits = getattr(legacy, "_bit_generator", None)
    if type(bits) is not _Twister or _random.Random.__basicsize__ - _HEAD < _TWISTER:
        return False
    places = [_within(python, _random.Random), (bits.ctypes.state_address, _TWISTER), _within(legacy, _Legacy)]
    before = [string_at(*place) for place in places]
    python.random()
    legacy.standard_normal()
    half = [string_at(*place) for place in places]
    legacy.standard_normal()  # the other half: no word of the generator moves
    after = [string_at(*place) for place in places]
    moved = all(one != other for one, other in zip(before, half, strict=True))
    return moved and half[:2] == after[:2] and half[2] != after[2]
