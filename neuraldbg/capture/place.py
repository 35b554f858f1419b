"""Where a process stands among those that train together, as its launcher has told it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# rank, world size, rank on this node, node, how often the launcher has started anew
_NAMES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "", ""),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", ""),  # the second only inside of srun
)


@dataclass(frozen=True, slots=True)
class Place:
    rank: int
    world_size: int
    local_rank: int | None = None
    node: int | None = None
    attempt: int = 0

    def told(self) -> dict[str, Any]:
        """As a fact: with the host and the process, so that a reader can say whom it means."""
        known = {name: getattr(self, name) for name in self.__slots__}
        return {**{f"group_{name}" if name == "rank" else name: value for name, value in known.items()}, **here()}


def here() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid()}


def place_of(environ: Mapping[str, str]) -> Place | None:
    """From the variables that launchers set; None for a process that nobody launched as one of several."""
    for rank, world, local, node, attempt in _NAMES:
        numbers = [_number(environ.get(name)) for name in (rank, world, local, node, attempt)]
        if numbers[0] is not None and numbers[1] is not None and 0 <= numbers[0] < numbers[1]:
            return Place(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] or 0)
    return None


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
