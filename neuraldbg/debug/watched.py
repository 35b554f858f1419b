"""A torch model under a session: watched as `NeuralDbg` does it, its layers told to hooks, its trace read on demand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from neuraldbg.analysis.inspection import gradient_history
from neuraldbg.analysis.results import Verdict
from neuraldbg.analysis.series import scalar_series
from neuraldbg.debug.diagnostics import ModelDiagnostics, ModelPerformanceMetrics
from neuraldbg.debug.gradients import GradientDebugger, GradientFlow
from neuraldbg.debug.hook_parts import HookContext
from neuraldbg.debug.hooks import DebugHooks
from neuraldbg.debug.tensors import BINS
from neuraldbg.records import SiteKind
from neuraldbg.session import NeuralDbg

MB = 2**20
FIRST_STEPS = 20  # in which hooks that only inspect get histogram and l1 norm too
LATER = 8  # and then in one of so many


class WatchedModel:
    """From `start` to `close`; afterwards the past can still be asked for."""

    def __init__(self, model: Any, *, out: Path | None, budget: str) -> None:
        self.dbg = NeuralDbg(model, out=out, budget=budget)
        self.dbg.start()
        self.model: Any = model  # None once it is closed
        self._layers: Any = None
        self._gradients_read: dict[str, int] = {}
        self._losses_read = -1

    @property
    def recorder(self) -> Any:
        return self.dbg._capture.core.recorder

    def is_compiled(self) -> bool:
        """Whether torch.compile has some of its layers, as far as they show it."""
        modules = self.model.modules()
        return any(hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) for one in modules)

    def loss(self) -> float | None:
        found = self.recorder.latest.get("loss")
        return None if found is None else float(found)

    def tell(self, hooks: DebugHooks) -> Callable[[], None]:
        """Has hooks act on the model's layers; returns what is to be called when hooks come or go."""
        from neuraldbg.capture.torch.layer_hooks import LayerHooks
        from neuraldbg.capture.torch.quick_look import looker

        recorder, look = self.recorder, looker(BINS)

        def told(name: str, tensor: Any, forward: bool) -> None:
            if look is not None and hooks.only_inspected(name):
                began = perf_counter_ns()
                step = recorder.step
                raw = look(tensor, step < FIRST_STEPS or step % LATER == 0)
                if raw is not None:
                    hooks.saw(name, raw, forward, step, perf_counter_ns() - began)
                    return
            hooks.run(HookContext(name, tensor, shape=None, is_forward=forward, step=recorder.step))

        self._layers = LayerHooks(self.model, hooks.wants, told)
        refresh: Callable[[], None] = self._layers.refresh
        return refresh

    def close(self, error: BaseException | None) -> None:
        if self._layers is not None:
            self._layers.close()
        self.model = None
        self.dbg.close(error)

    def verdict(self) -> Verdict:
        return self.dbg.diagnose()

    # -- what was recorded meanwhile ---------------------------------------------------------------------------------

    def read_gradients(self, into: GradientDebugger) -> None:
        trace = self.dbg.trace
        for site in trace.sites:
            if site.kind is not SiteKind.MODULE or not site.parameters:
                continue
            name = trace.canonical(site)
            last = self._gradients_read.get(name, -1)
            for one in gradient_history(trace, name):
                if one.step <= last:
                    continue
                norm = math.nan if one.norm is None else one.norm
                into.add(GradientFlow(name, one.step, norm, one.mean, one.std, one.max, elements=site.parameters))
                self._gradients_read[name] = one.step

    def read_losses(self, into: ModelDiagnostics) -> None:
        series = scalar_series(self.dbg.trace)
        if "loss" not in series:
            return
        rates, memory, held = (_by_step(series, name) for name in ("lr", "rss_bytes", "eval_loss"))
        rate = used = None
        for step, loss in zip(*(each.tolist() for each in series["loss"]), strict=True):
            rate, used = rates.get(step, rate), memory.get(step, used)
            if step <= self._losses_read:
                continue
            into.add(
                ModelPerformanceMetrics(
                    training_step=step,
                    loss=loss,
                    learning_rate=rate,
                    memory_usage_mb=None if used is None else used / MB,
                    validation_loss=held.get(step),
                )
            )
            self._losses_read = step


def _by_step(series: Any, name: str) -> dict[int, float]:
    steps, values = series.get(name, ((), ()))
    return dict(zip(steps.tolist(), values.tolist(), strict=True)) if len(steps) else {}
