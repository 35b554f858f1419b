"""`(neural)`: what a breakpoint opens at the trainer's own terminal, as pdb does.

It runs in the held training thread, so an expression sees the user's variables as they are. The page or a curl line may
ask for tensors and let the run go on just as well, also while a line is half typed.
"""

from __future__ import annotations

import codecs
import os
import select
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from neuraldbg.control.breakpoints import split_break
from neuraldbg.control.gate import Gate
from neuraldbg.errors import ConditionError, NeuralDbgError, NotPaused, UsageError
from neuraldbg.records import Stop
from neuraldbg.surfaces.terminal.editor import LineEditor
from neuraldbg.surfaces.terminal.tensor_picture import tensor_lines

PROMPT = "(neural) "
TICK_S = 0.1
MOST_OFFERS = 60
HELP = """\
c            continue                  n          run to the next layer
s            run to the next step      q          leave the training, as Ctrl-C
b            list breakpoints          d, on, off ID   delete, switch on, off
b LAYER [forward|backward|step] [if CONDITION]    stop there from now on
l [PATTERN]  layers                    v          values of this layer
t [LAYER] [KIND] [SLICE]   a tensor: output, input, gradient, weight, bias,
             weight.grad
p EXPR       any Python in the frame that is held (input, output, gradient too)
w            why: what is known to be wrong so far"""


class TerminalPrompt:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._last = ""
        self._editor = LineEditor(PROMPT)

    def __call__(self, gate: Gate, stop: Stop, reasons: list[str]) -> None:
        """EOF lets the training go on; so does a terminal that is gone, and then nobody is asked there any more."""
        try:
            self._print(f"paused {stop.title()}: {'; '.join(reasons)}")
            self._editor.words = lambda first: sorted(_ACTS) if first else [*self._names(gate), *_KINDS]
            while not gate.open:
                line = self._line(gate)
                if line is None:
                    self._print("continued from elsewhere")
                else:
                    self._do(line or self._last, gate, stop)
        except EOFError:
            with suppress(NotPaused):  # somebody else was quicker
                gate.resume()
            self._print("\ntraining goes on")
        except (OSError, ValueError):
            gate.leave_alone()

    def _do(self, line: str, gate: Gate, stop: Stop) -> None:
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        act = _ACTS.get(word)
        if not word:
            return
        self._last = word if word in ("n", "s") else ""
        if act is None:
            self._print(f"no command {word!r}: h lists them; p {line} evaluates it as Python")
            return
        try:
            act(self, gate, stop, rest)
        except ConditionError as error:
            self._print(f"{error}\n{error.caret()}")
        except NeuralDbgError as error:
            self._print(str(error))
        except Exception as error:  # noqa: BLE001  an answer that fails must not cost the breakpoints
            self._print(f"{word} failed: {type(error).__name__}: {error}")

    # -- commands ------------------------------------------------------------------------------------------------------

    def _continue(self, gate: Gate, _: Stop, __: str) -> None:
        gate.resume()

    def _next(self, gate: Gate, _: Stop, __: str) -> None:
        gate.step("layer")

    def _step(self, gate: Gate, _: Stop, __: str) -> None:
        gate.step("step")

    def _quit(self, gate: Gate, _: Stop, __: str) -> None:
        gate.abort()

    def _help(self, _: Gate, __: Stop, ___: str) -> None:
        self._print(HELP)

    def _break(self, gate: Gate, _: Stop, rest: str) -> None:
        if rest:
            layer, phase, condition = split_break(rest)
            one = gate.breakpoints.add(layer, condition, phase=phase)
            self._print(f"breakpoint {one.id} at {', '.join(one.layers) or one.spec.layer} ({one.as_dict()['phase']})")
            return
        listed = [one.told() for one in gate.breakpoints]
        listed += [f"    on  when {name} holds" for name, _ in gate.when]
        listed += [f"    on  {kind}, when it is found  hits {hits}" for kind, hits in gate.kinds.items()]
        for line in listed or ["no breakpoints; b LAYER [forward|backward|step] [if CONDITION] makes one"]:
            self._print(line)

    def _delete(self, gate: Gate, _: Stop, rest: str) -> None:
        removed = gate.breakpoints.remove(_named(rest))
        self._print(f"deleted {', '.join(str(one.id) for one in removed)}")

    def _on(self, gate: Gate, _: Stop, rest: str) -> None:
        gate.breakpoints.change(_named(rest), enabled=True)

    def _off(self, gate: Gate, _: Stop, rest: str) -> None:
        gate.breakpoints.change(_named(rest), enabled=False)

    def _layers(self, gate: Gate, stop: Stop, rest: str) -> None:
        wanted = self._names(gate, rest or "*")
        for name in wanted:
            self._print(f"{'->' if name == stop.layer else '  '} {name}")
        if not wanted:
            self._print(f"no layer {rest!r}")

    def _values(self, _: Gate, stop: Stop, __: str) -> None:
        for name, value in stop.values.items():
            self._print(f"{name:>16} {'-' if value is None else f'{value:.6g}' if isinstance(value, float) else value}")

    def _tensor(self, gate: Gate, stop: Stop, rest: str) -> None:
        if stop.describe is None:
            raise NotPaused("no tensors can be read here")
        words = rest.split()
        names = self._names(gate)
        layer = words.pop(0) if words and (words[0] in names or words[0] not in _KINDS) else None
        kind = words.pop(0) if words else ("weight" if layer not in (None, stop.layer) else _first_kind(stop))
        for line in tensor_lines(stop.describe(stop, kind, layer, " ".join(words) or None)):
            self._print(line)

    def _print_value(self, _: Gate, stop: Stop, rest: str) -> None:
        """Full Python: it is the user's own terminal and process."""
        frame = stop.frame
        scope = {} if frame is None else {**frame.f_globals, **frame.f_locals}
        try:
            self._print(repr(eval(rest, {**scope, **stop.tensors()})))
        except KeyboardInterrupt:
            self._print("interrupted; Ctrl-C at the prompt ends the script")
        except BaseException as error:  # noqa: BLE001  the expression is the user's
            self._print(f"{type(error).__name__}: {error}")

    def _tell_why(self, gate: Gate, _: Stop, __: str) -> None:
        """From what is on disk by now: the newest fifth of a second may be missing."""
        from neuraldbg.analysis.summary import summarise
        from neuraldbg.surfaces.terminal.console import make_console
        from neuraldbg.surfaces.terminal.diagnosis import render_diagnosis
        from neuraldbg.trace import open_trace

        if gate.run_dir is None:
            self._print("nothing is recorded here that could be judged")
            return
        with open_trace(gate.run_dir) as trace:
            render_diagnosis(summarise(trace, alive=True, ongoing=True), make_console(self._out))

    # -- reading and writing -------------------------------------------------------------------------------------------

    def _names(self, gate: Gate, pattern: str = "*") -> list[str]:
        resolve = gate.breakpoints.resolve
        return [] if resolve is None else list(dict.fromkeys(resolve(pattern).values()))

    def _line(self, gate: Gate) -> str | None:
        """What is typed; None when the gate was opened elsewhere. Requests are served while somebody types."""
        if not hasattr(os, "tcgetpgrp"):
            return input(PROMPT)  # a system without such terminals
        editor, columns = self._editor, shutil.get_terminal_size().columns
        editor.begin()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with _single_keys() as descriptor:
            self._write(editor.picture(columns))
            while not gate.open:
                gate.work(0)
                if not select.select([descriptor], [], [], TICK_S)[0]:
                    continue
                typed = os.read(descriptor, 1)  # the rest is for whoever reads next, perhaps the script
                if not typed:
                    raise OSError("the terminal is gone")
                for letter in decoder.decode(typed):
                    line = editor.press(letter)
                    if line is not None:
                        self._write("\n")
                        return line
                if editor.offers:
                    self._write("\n" + "  ".join(editor.offers[:MOST_OFFERS]) + "\n")
                self._write(editor.picture(columns))
        self._write("\n")
        return None

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


_KINDS = ("output", "input", "gradient", "weight", "bias", "weight.grad", "bias.grad")
_ACTS: dict[str, Callable[[TerminalPrompt, Gate, Stop, str], None]] = {
    "c": TerminalPrompt._continue,
    "continue": TerminalPrompt._continue,
    "n": TerminalPrompt._next,
    "next": TerminalPrompt._next,
    "s": TerminalPrompt._step,
    "step": TerminalPrompt._step,
    "q": TerminalPrompt._quit,
    "quit": TerminalPrompt._quit,
    "b": TerminalPrompt._break,
    "break": TerminalPrompt._break,
    "d": TerminalPrompt._delete,
    "on": TerminalPrompt._on,
    "off": TerminalPrompt._off,
    "l": TerminalPrompt._layers,
    "layers": TerminalPrompt._layers,
    "v": TerminalPrompt._values,
    "t": TerminalPrompt._tensor,
    "p": TerminalPrompt._print_value,
    "w": TerminalPrompt._tell_why,
    "why": TerminalPrompt._tell_why,
    "h": TerminalPrompt._help,
    "help": TerminalPrompt._help,
    "?": TerminalPrompt._help,
}


def can_prompt() -> bool:
    """Somebody sits at this terminal, in the foreground."""
    try:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        return not hasattr(os, "tcgetpgrp") or os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


def _named(rest: str) -> int | str:
    if not rest:
        raise UsageError("which one? b lists them by number and layer")
    return int(rest) if rest.isdigit() else rest


def _first_kind(stop: Stop) -> str:
    found = stop.tensors()
    return next((kind for kind in ("output", "gradient", "weight") if kind in found), "output")


@contextmanager
def _single_keys() -> Iterator[int]:
    """The terminal hands over every key as it is pressed, and echoes none. Ctrl-C stays a signal."""
    import termios

    descriptor = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(descriptor)
        keys = [*before]
        keys[3] = before[3] & ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(descriptor, termios.TCSANOW, keys)
    except termios.error as error:
        raise OSError(*error.args) from None
    try:
        yield descriptor
    finally:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
