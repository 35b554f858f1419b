"""Marks of gradients, the identity and the version of each: who takes them again sees whether somebody wrote to a
gradient, or put another in its place, past every call that is known to do so."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from neuraldbg.capture.kernels import frameless

Marks = dict[int, tuple[int, int]]  # parameter -> of its gradient


def mark(parameters: list[Tensor], marks: Marks, known_only: bool) -> None:
    for parameter in parameters:
        if not known_only or id(parameter) in marks:
            marks[id(parameter)] = _mark_of(parameter)


def as_marked(parameters: list[Tensor], marks: Marks) -> bool:
    return all(marks.get(id(parameter)) == _mark_of(parameter) for parameter in parameters)


def _mark_of(parameter: Tensor) -> tuple[int, int]:
    gradient = parameter.grad
    return (0, 0) if gradient is None else (id(gradient), gradient._version)


class GradientMarks:
    """Of all parameters that were among those given the last time."""

    def __init__(self) -> None:
        self._marks: Marks = {}
        self._mark, self._as_marked = frameless.mark or mark, frameless.as_marked or as_marked

    def take(self, held: Iterable[list[Tensor]]) -> None:
        """Of these and of no others."""
        self._marks = {}
        for parameters in held:
            self._mark(parameters, self._marks, False)

    def take_again(self, parameters: list[Tensor]) -> None:
        """Of those that have one: they were changed by something that is known."""
        self._mark(parameters, self._marks, True)

    def stand(self, parameters: list[Tensor]) -> bool:
        """Whether every gradient is the one that it was."""
        return self._as_marked(parameters, self._marks)
