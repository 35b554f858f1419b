"""Children of a spawn are watched too: what multiprocessing sends them first carries one object that attaches on
arrival."""

from __future__ import annotations

from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

from neuraldbg.capture.torch.patches import Patches

if TYPE_CHECKING:
    from neuraldbg.capture.attachment import Plan

_ON_ARRIVAL = """
import sys
if {folder!r} not in sys.path:
    sys.path.append({folder!r})
try:
    from {module} import attach_child
    attach_child({plan!r})
except Exception as error:
    print(f"neuraldbg: this child process is not watched: {{error!r}}", file=sys.stderr)
"""


class _Arrival:
    """Unpickles as a call of `exec`: no module of ours need be importable for the child to start."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (self.code, {"__name__": "neuraldbg_arrival"}))


class SpawnPatch:
    """No environment variable and no sitecustomize: the preparation data of each child, nothing else."""

    def __init__(self, plan: Plan) -> None:
        from neuraldbg.capture.attachment import package_parent

        module = "neuraldbg.capture.attachment" if plan.pausable is None else "neuraldbg.ranks.spawned"
        code = _ON_ARRIVAL.format(folder=package_parent(), plan=plan.to_json(), module=module)
        original = spawn.get_preparation_data
        self._patches = Patches()

        def get_preparation_data(name: str) -> dict[str, Any]:
            return {"neuraldbg": _Arrival(code), **original(name)}

        self._patches.replace(spawn, "get_preparation_data", get_preparation_data)

    def close(self) -> None:
        self._patches.close()
