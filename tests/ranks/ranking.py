"""Several processes of one program, launched as a launcher would, with the debugger beside them and without."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forkserver import ForkServer, Result, Running

from neuraldbg import Trace, open_trace
from neuraldbg.analysis.summary import RunSummary, summarise

RESULT = re.compile(r"rank \d+ [0-9a-f]{16} loss \S+ sent \d{6}")
PROGRAMS = Path(__file__).parents[1] / "programs" / "ranks"


@dataclass
class Ranks:
    """The processes of one launch."""

    running: list[Running]
    run_dir: Path

    def wait(self, timeout: float = 90) -> list[Result]:
        return [one.wait(timeout=timeout, offspring=False) for one in self.running]

    def kill(self) -> None:
        for one in self.running:
            if one.code is None:
                one.kill()
        self.wait()

    def trace(self) -> Trace:
        return open_trace(self.run_dir)

    def summary(self) -> RunSummary:
        with self.trace() as trace:
            return summarise(trace, alive=False)


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(
    server: ForkServer,
    folder: Path,
    program: str,
    *words: str,
    world: int = 2,
    options: tuple[str, ...] | None = (),
    only: Sequence[int] | None = None,
    port: int | None = None,
) -> Ranks:
    """Every rank of a program, or `only` some; `options` of the debugger, None without it."""
    port, script = port or free_port(), str(PROGRAMS / program)
    run = folder / "run"
    own = () if options is None else ("debug", *(options or ("--headless",)), "--out", str(run))
    running = [
        server.start(*own, script, *words, neural=options is not None, cwd=folder, env=environment(rank, world, port))
        for rank in (range(world) if only is None else only)
    ]
    return Ranks(running, run)


@dataclass
class Ended:
    """A launch that is over, and what its processes wrote."""

    ranks: Ranks
    results: list[Result]


@dataclass
class Launches:
    """Every program is launched once, whatever is asked of it."""

    server: ForkServer
    folder: Path
    _ended: dict[tuple[object, ...], Ended] = field(default_factory=dict)

    def of(self, program: str, *words: str, world: int = 2) -> Ended:
        key = (program, words, world)
        if key not in self._ended:
            folder = self.folder / str(len(self._ended))
            folder.mkdir()
            ranks = launch(self.server, folder, program, *words, world=world)
            self._ended[key] = Ended(ranks, ranks.wait())
        return self._ended[key]


def told(results: list[Result]) -> list[str]:
    """What every rank prints of its results; torchrun's ranks do not buffer, so that lines may run into each other."""
    return [line for one in results for line in RESULT.findall(one.stdout)]


def kinds(summary: RunSummary) -> list[str]:
    """What was found above information."""
    return [one["kind"] for one in summary.findings if one["severity"] != "info"]
