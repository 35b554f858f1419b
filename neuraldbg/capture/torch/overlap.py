"""How much of the communication is hidden behind the rank's own work.

DistributedDataParallel times its buckets by itself, in its first updates and every hundredth: its own figures are read.
Else collectives are timed: those that are waited for later (`async_op=True`) from their beginning to the end of the
wait, less the wait itself; of the others nothing is hidden. On CUDA the host does not wait, and nothing is said.
"""

from __future__ import annotations

import weakref
from typing import Any

MOST_UNDER_WAY = 4096
FIRST = 8  # updates until it is told the first time; then each time there are twice as many


class Overlap:
    def __init__(self) -> None:
        self._wrappers: list[weakref.ref[Any]] = []
        self._begun: dict[int, int] = {}  # work that is under way -> when it began
        self._under_way_ns = self._waited_ns = 0
        self._next = FIRST
        self._gradient_bytes: int | None = None

    def wraps(self, wrapper: Any) -> None:
        self._wrappers.append(weakref.ref(wrapper))
        self._gradient_bytes = None

    def takes(self, work: Any, start_ns: int, end_ns: int) -> None:
        """A collective; with `work` one that is waited for later."""
        if work is None:
            self._under_way_ns += end_ns - start_ns
            self._waited_ns += end_ns - start_ns
        elif len(self._begun) < MOST_UNDER_WAY:
            self._begun[id(work)] = start_ns

    def waited(self, work: Any, start_ns: int, end_ns: int) -> None:
        began = self._begun.pop(id(work), None)
        if began is not None:
            self._under_way_ns += end_ns - began
            self._waited_ns += end_ns - start_ns

    def averages(self) -> bool | None:
        """Whether the backward that begins puts gradients together: the last forward through a wrapper was outside of
        `no_sync`. None where there is no wrapper."""
        wrappers = self._alive()
        return any(one.require_forward_param_sync for one in wrappers) if wrappers else None

    def sends(self, called: Any) -> int | None:
        """Bytes of the gradients that the wrapper puts together in the backward that begins; None where it does not,
        was not `called`, or is not the only one."""
        wrappers = self._alive()
        if len(wrappers) != 1 or not wrappers[0].require_forward_param_sync or called.get(wrappers[0]) is None:
            return None
        if self._gradient_bytes is None:
            trained = (p for p in wrappers[0].parameters() if p.requires_grad)
            self._gradient_bytes = sum(p.numel() * p.element_size() for p in trained)
        return self._gradient_bytes

    def _alive(self) -> list[Any]:
        return [wrapper for ref in self._wrappers if (wrapper := ref()) is not None]

    def due(self, step: int) -> bool:
        if step < self._next:
            return False
        self._next = 2 * step
        return True

    def told(self) -> list[dict[str, Any]]:
        """Seconds of communication, and of them those that were hidden."""
        wrapped = [self._of_wrapper(wrapper) for wrapper in self._alive()]
        found = [one for one in wrapped if one is not None]
        if self._under_way_ns and not found:
            hidden = self._under_way_ns - self._waited_ns
            found.append({"by": "waits", "communication_s": self._under_way_ns / 1e9, "hidden_s": hidden / 1e9})
        return found

    def _of_wrapper(self, wrapper: Any) -> dict[str, Any] | None:
        if wrapper.device_type != "cpu" or wrapper.logger is None:
            return None
        times = wrapper.logger._get_ddp_logging_data().ints_map
        communicated, hidden = times.get("avg_backward_comm_time"), times.get("avg_backward_compute_comm_overlap_time")
        if not communicated or hidden is None or communicated < 0 or hidden < 0:
            return None
        own = {"communication_s": communicated / 1e9, "hidden_s": min(hidden, communicated) / 1e9}
        return {"by": "DistributedDataParallel", **own}
