"""Where our words end and the script's begin: the argument splitter of `neural debug`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuraldbg.errors import UsageError

DSL_SUFFIXES = (".neural", ".nr", ".rnr")
LAUNCHERS = {  # that are no programs of ours to run: where the debugger stands in their command line
    "mpirun": "mpirun -np 4 python -m neuraldbg train.py",
    "mpiexec": "mpiexec -n 4 python -m neuraldbg train.py",
    "srun": "srun python -m neuraldbg train.py",
    "horovodrun": "horovodrun -np 4 python -m neuraldbg train.py",
    "deepspeed": "deepspeed --module neuraldbg train.py",
    "ray": "ray job submit -- python -m neuraldbg train.py",
}
_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?(\.exe)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Split:
    """A command line taken apart."""

    own: tuple[str, ...]  # our options, for the option parser
    target: str | None
    args: tuple[str, ...] = ()  # the script's, untouched
    module: bool = False  # the target is a module, as after `python -m`


def split_target(words: Sequence[str], values: Mapping[str, int]) -> Split:
    """Our options stand before the target; the target and everything after it are not ours.

    `values` says how many words follow each of our options. An option it does not know takes none: the option
    parser will refuse it by name.
    """
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return _split_at(words[:at], words[at + 1 :])
        if word == "-m" or (word.startswith("-m") and not word.startswith("--")):
            return _split_at(words[:at], words[at:])
        if not word.startswith("-") or word == "-":
            return _split_at(words[:at], words[at:])
        at += 1 if "=" in word and word.startswith("--") else 1 + values.get(word, 0)
    return Split(tuple(words), None)


def need_values(own: Sequence[str], values: Mapping[str, int]) -> None:
    """An option at the end that waits for its value would take the target for it."""
    at = 0
    while at < len(own):
        taken = 0 if "=" in own[at] and own[at].startswith("--") else values.get(own[at], 0)
        if taken > len(own) - at - 1:
            raise UsageError(f"{own[at]} needs {'a value' if taken == 1 else f'{taken} values'}")
        at += 1 + taken


def _split_at(own: Sequence[str], rest: Sequence[str]) -> Split:
    if not rest:
        return Split(tuple(own), None)
    first, *after = rest
    if first.startswith("-m") and not first.startswith("--"):
        named = [first[2:], *after] if len(first) > 2 else after
        if not named:
            raise UsageError("-m needs the name of a module: neural debug -m package.module")
        return Split(tuple(own), named[0], tuple(named[1:]), module=True)
    if first.endswith(DSL_SUFFIXES):  # its options may stand behind it
        return Split((*own, *after), first)
    if _PYTHON.fullmatch(os.path.basename(first)) and not os.path.isfile(f"{first}.py"):
        return _after_interpreter(own, first, after)
    return Split(tuple(own), first, tuple(after))


def _after_interpreter(own: Sequence[str], interpreter: str, after: Sequence[str]) -> Split:
    """`neural debug python train.py`: the interpreter is this one, the script is what follows."""
    if not after:
        raise UsageError(f"{interpreter} needs a script: neural debug train.py")
    if after[0].startswith("-") and not after[0].startswith("-m"):
        raise UsageError(
            f"the interpreter's own option {after[0]} cannot be passed on; "
            f"write: {interpreter} {after[0]} -m neuraldbg train.py"
        )
    if after[0].startswith("-m"):
        return _split_at(own, after)
    return Split(tuple(own), after[0], tuple(after[1:]))


def refuse_unsupported(target: str) -> None:
    """Launchers that are no Python programs, with what to write instead."""
    name = os.path.basename(target)
    if name in LAUNCHERS and not os.path.isdir(target):
        raise UsageError(
            f"{name} starts processes that cannot be reached from here; put the debugger behind it: {LAUNCHERS[name]}"
        )
