"""The same script twice: the first operation whose result is another one, and what makes it the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from neuraldbg.errors import NeuralDbgError
from neuraldbg.replay.arm import ArmPlan
from neuraldbg.replay.running import last_words, run_arm
from neuraldbg.replay.scratch import scratch_copy

DRAWING = ("rand", "normal", "bernoulli", "multinomial", "uniform", "exponential", "dropout", "poisson", "random")
SAME = "torch.use_deterministic_algorithms(True) takes one that is the same each time, or says that there is none"
CURES = (  # part of a name, what to do
    (DRAWING, "set the seed first: torch.manual_seed(0)"),
    (("index_add", "scatter", "index_put", "embedding", "bincount", "histc"), SAME),
    (("attention", "flash", "efficient"), f"{SAME}; CUBLAS_WORKSPACE_CONFIG=:4096:8 has to be set before CUDA starts"),
    (("conv", "cudnn"), "torch.backends.cudnn.deterministic = True and benchmark = False"),
    (("mm", "addmm", "bmm", "linear"), "CUBLAS_WORKSPACE_CONFIG=:4096:8 before CUDA starts; on a CPU the same threads"),
)
OUTSIDE = (
    "what goes in is another value already, and no operation of torch made it: it was drawn or read outside torch; "
    "seed numpy and random (numpy.random.seed(0), random.seed(0)), sort file lists, pass generator= to the DataLoader"
)


@dataclass(frozen=True, slots=True)
class Operation:
    step: int
    name: str
    entered: int
    left: int
    source: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part."""

    number: int  # of the operation, from 0
    step: int  # updates made before it
    op: str
    source: str | None
    inputs_equal: bool
    kind: str  # result, input, order, length
    cure: str


@dataclass(frozen=True, slots=True)
class Determinism:
    operations: int  # that were the same
    steps: int
    difference: Difference | None

    def to_dict(self) -> dict[str, Any]:
        found = None if self.difference is None else asdict(self.difference)
        return {"operations": self.operations, "steps": self.steps, "difference": found}


class ScriptFails(NeuralDbgError):
    """It does not run to the first update."""


def run_twice(
    target: str, args: tuple[str, ...], *, module: bool, steps: int, seconds: float, tell: Callable[[str], None]
) -> Determinism:
    origin = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="neuraldbg-twice-") as place:
        logs = [Path(place) / f"{number}.tsv" for number in (1, 2)]
        for number, log in enumerate(logs, 1):
            tell(f"run {number} of 2")
            with scratch_copy(origin) as scratch:
                plan = ArmPlan(target, args, module, (), place, str(scratch), str(origin), steps, operations=str(log))
                output = Path(place) / "output.txt"
                code, late = run_arm(plan, output, seconds)
            if code != 0 or late:
                raise ScriptFails(_why(code, output, late=late, seconds=seconds))
        return compare(read(logs[0]), read(logs[1]))


def _why(code: int, output: Path, *, late: bool, seconds: float) -> str:
    if late:
        return f"the script was not done after {seconds:g} s; fewer --steps or a longer --timeout"
    return f"the script ended with exit code {code}: {last_words(output)}"


def read(path: Path) -> Iterator[Operation]:
    """Of a script that never imported torch: nothing."""
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for line in file:
            step, name, entered, left, source = line.rstrip("\n").split("\t")
            yield Operation(int(step), name, int(entered), int(left), source)


def compare(first: Iterator[Operation], second: Iterator[Operation]) -> Determinism:
    number, steps = 0, 0
    for one, other in zip_longest(first, second):
        if one is not None and other is not None and (one.name, one.left) == (other.name, other.left):
            number, steps = number + 1, one.step  # what went in may be memory that nobody has written to yet
            continue
        return Determinism(number, steps, _difference(number, one, other))
    return Determinism(number, steps, None)


def _difference(number: int, one: Operation | None, other: Operation | None) -> Difference:
    here = one or other
    assert here is not None
    source = None if here.source == "-" else here.source
    if one is None or other is None:
        return Difference(number, here.step, here.name, source, False, "length", "one run makes more operations")
    if one.name != other.name:
        said = f"the other run goes on with {other.name}: the program itself takes another way"
        return Difference(number, one.step, one.name, source, False, "order", said)
    if one.entered != other.entered and not _fills(one.name):
        return Difference(number, one.step, one.name, source, False, "input", OUTSIDE)
    return Difference(number, one.step, one.name, source, True, "result", _cure(one.name))


def _fills(name: str) -> bool:
    """Whether an operation writes over what it is given, as `uniform_` does: what stood there does not matter."""
    return name.endswith("_") and any(part in name for part in DRAWING)


def _cure(name: str) -> str:
    short = name.partition("::")[2]
    for parts, cure in CURES:
        if any(part in short for part in parts):
            return cure
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    return f"{SAME}; on a CPU run it with one thread (OMP_NUM_THREADS=1; now {threads})"
