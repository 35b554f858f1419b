"""Several nodes, each with a launcher of its own under the debugger: the first makes the run in a directory that all of
them see, the others join it there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from neuraldbg.ranks.meeting import LOOK_S, OLDER_S, PATIENCE_S
from neuraldbg.ranks.orders import ORDERS_FILE, read_orders
from neuraldbg.trace.rundir import LAUNCHED_FILE
from neuraldbg.viewing import say

# of torchrun, torch.distributed.launch and accelerate launch; then what torchrun reads from its environment
_NODES = ("--nnodes", "--num_machines", "--num-machines")
_NODE = ("--node-rank", "--node_rank", "--machine_rank", "--machine-rank")
_ENVIRONMENT = ("PET_NNODES", "PET_NODE_RANK")


@dataclass(frozen=True, slots=True)
class Node:
    """One of several; `number` is None where the launchers agree on it among themselves (a rendezvous backend)."""

    number: int | None


def node_of(words: Sequence[str], environ: Mapping[str, str]) -> Node | None:
    """From a launcher's words; None where there is one node."""
    nodes = _value(words, _NODES) or environ.get(_ENVIRONMENT[0]) or "1"
    number = _value(words, _NODE) or environ.get(_ENVIRONMENT[1])
    most = nodes.rpartition(":")[2]  # 1:4 = one to four
    if not most.isdigit() or int(most) < 2:
        return None
    return Node(int(number) if number is not None and number.isdigit() else None)


def run_of_another_node(words: Sequence[str], environ: Mapping[str, str], out: Path | None) -> tuple[Path, int] | None:
    """The run that this node joins, and the number of the node; None where it makes one."""
    node = node_of(words, environ)
    if node is None:
        return None
    if out is None:
        say("several nodes: give all of them the same --out, in a directory that they share, for one run of all")
        return None
    found = run_to_join(node, out)
    if found is None and node.number:
        say(f"no run of the first node came at {out}: this node makes one of its own")
    return None if found is None else (found, os.getpid() if node.number is None else node.number)


def run_to_join(node: Node, out: Path, patience_s: float = PATIENCE_S) -> Path | None:
    """The run that another node has begun at `out`; None where this node is the one that makes it."""
    begun_there = node.number is None and out.is_dir() and any(out.iterdir())  # by another, in this very moment
    began, until = time.time(), time.monotonic() + (patience_s if node.number or begun_there else 0.0)
    while True:
        with suppress(OSError, ValueError, KeyError, TypeError):
            fresh = (out / ORDERS_FILE).stat().st_mtime > began - OLDER_S and not (out / LAUNCHED_FILE).exists()
            if node.number != 0 and fresh:
                read_orders(out)
                return out.resolve()
        if time.monotonic() >= until:
            return None
        time.sleep(LOOK_S)


def _value(words: Sequence[str], names: Sequence[str]) -> str | None:
    """`--name VALUE` or `--name=VALUE`, before the script's own words."""
    for at, word in enumerate(words):
        if word.endswith(".py"):
            return None
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next(iter(words[at + 1 :]), None)
    return None
