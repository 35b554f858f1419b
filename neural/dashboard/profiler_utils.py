"""Helpers around the layers of a loop written by hand: timing, breakpoints and anomalies in one place each.

They use the profiler, breakpoints and detector of `neural.dashboard.dashboard` unless `initialize_helpers`
gives others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from neuraldbg.analysis.anomalies import AnomalyDetector

from . import dashboard
from .breakpoints import BreakpointManager
from .entries import plain_entry
from .hooks import hooks
from .performance import PerformanceProfiler

Function = TypeVar("Function", bound=Callable[..., Any])
Alert = Callable[[str, dict[str, Any], dict[str, Any]], Any]


class LayerProfilerHelper:
    """Times functions and blocks as layers, while it is enabled."""

    def __init__(self, target: PerformanceProfiler | None = None) -> None:
        self.target = target
        self.enabled = True

    def enable(self) -> None:
        """From here on calls are timed."""
        self.enabled = True

    def disable(self) -> None:
        """From here on nothing is timed."""
        self.enabled = False

    def profile(self, layer_name: str) -> Callable[[Function], Function]:
        """A decorator: every call of the function is timed as this layer."""

        def decorate(function: Function) -> Function:
            @wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                with self.profile_context(layer_name):
                    return function(*args, **kwargs)

            return call  # type: ignore[return-value]

        return decorate

    @contextmanager
    def profile_context(self, layer_name: str) -> Iterator[None]:
        """`with layer_profiler.profile_context("Dense_1"): ...`"""
        if not self.enabled:
            yield
            return
        profiler = self.target or dashboard.profiler
        profiler.start_layer(layer_name)
        try:
            yield
        finally:
            profiler.end_layer(layer_name)


class BreakpointHelper:
    """Stops the loop where a breakpoint says so. Where nobody could continue it, that is said once and it goes on."""

    def __init__(self, target: BreakpointManager | None = None) -> None:
        self.target = target
        self.wait: bool | None = None  # None: wherever the page is served; True: always; False: never
        self._said = False

    def check(self, layer_name: str, layer_data: Mapping[str, Any]) -> bool:
        """Whether it stopped here. Returns when somebody has continued."""
        manager = self.target or dashboard.breakpoint_manager
        if not manager.should_break(layer_name, layer_data):
            return False
        if not (dashboard.can_answer() if self.wait is None else self.wait):
            if not self._said:
                self._said = True
                dashboard.say(f"breakpoint at {layer_name}: nobody can answer here, so it is counted and the loop goes "
                              "on; start_dashboard_server() lets the page continue it")  # fmt: skip
            return False
        dashboard.say(f"paused at {layer_name}; POST /api/continue or breakpoint_manager.continue_execution() goes on")
        return manager.hold(layer_name, layer_data)

    @contextmanager
    def check_context(self, layer_name: str, layer_data: Mapping[str, Any]) -> Iterator[bool]:
        """Checks before the block; gives whether it stopped."""
        yield self.check(layer_name, layer_data)


class AnomalyMonitor:
    """Judges every sample by those before it, remembers it, and tells who asked to be told."""

    def __init__(self, target: AnomalyDetector | None = None) -> None:
        self.target = target
        self._alert: Alert | None = None

    def set_alert_callback(self, callback: Alert | None) -> None:
        """`callback(layer, metrics, result)` is called at every anomaly."""
        self._alert = callback

    def check(self, layer_name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """`{"is_anomaly": ..., "scores": ...}`."""
        detector = self.target or dashboard.anomaly_detector
        result = detector.detect_anomalies(layer_name, metrics)
        detector.add_sample(layer_name, metrics)
        if result["is_anomaly"]:
            if self._alert is not None:
                self._alert(layer_name, dict(metrics), result)
            hooks.fire("on_anomaly", layer_name=layer_name, data=dict(metrics), result=result)
        return result

    @contextmanager
    def monitor_context(self, layer_name: str) -> Iterator[dict[str, Any]]:
        """Gives a dict to put the metrics in; the time of the block is added where they have none."""
        metrics: dict[str, Any] = {}
        began = time.perf_counter()
        yield metrics
        metrics.setdefault("execution_time", time.perf_counter() - began)
        self.check(layer_name, metrics)


class ExecutionContext:
    """What is known of one execution of a layer."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}
        self.output: Any = None

    def set_metrics(self, metrics: Mapping[str, Any]) -> None:
        self.metrics.update(metrics)


class LayerExecutionWrapper:
    """Everything at once around a layer: it is timed, pushed, watched for anomalies, and may stop at a breakpoint."""

    def wrap(
        self, layer_name: str, collect_metrics: Callable[[Any], Mapping[str, Any]] | None = None
    ) -> Callable[[Function], Function]:
        """`collect_metrics(output)` gives the numbers of an execution beside its time."""

        def decorate(function: Function) -> Function:
            @wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                with self.wrap_context(layer_name) as execution:
                    execution.output = function(*args, **kwargs)
                    if collect_metrics is not None:
                        execution.set_metrics(collect_metrics(execution.output))
                return execution.output

            return call  # type: ignore[return-value]

        return decorate

    @contextmanager
    def wrap_context(self, layer_name: str) -> Iterator[ExecutionContext]:
        """Times, pushes and watches what is inside; `set_metrics` of what it gives adds numbers of yours."""
        execution = ExecutionContext()
        hooks.fire("before_layer", layer_name=layer_name, activations=None)
        began = time.perf_counter()
        with layer_profiler.profile_context(layer_name):
            yield execution
        seconds = time.perf_counter() - began
        entry = plain_entry({"layer": layer_name, "execution_time": seconds, **execution.metrics})
        numbers = {name: value for name, value in entry.items() if name != "layer"}
        dashboard.push_entry(entry)
        anomaly_monitor.check(layer_name, numbers)
        hooks.fire("after_layer", layer_name=layer_name, activations=execution.output)
        breakpoint_helper.check(layer_name, numbers)


layer_profiler = LayerProfilerHelper()
breakpoint_helper = BreakpointHelper()
anomaly_monitor = AnomalyMonitor()


def initialize_helpers(
    profiler: PerformanceProfiler | None = None,
    breakpoint_manager: BreakpointManager | None = None,
    anomaly_detector: AnomalyDetector | None = None,
) -> None:
    """Has the helpers work with these; without one, with that of the dashboard."""
    layer_profiler.target = profiler
    breakpoint_helper.target = breakpoint_manager
    anomaly_monitor.target = anomaly_detector


def auto_initialize() -> bool:
    """Has the helpers work with the dashboard's own; always possible here, so always True."""
    initialize_helpers(dashboard.profiler, dashboard.breakpoint_manager, dashboard.anomaly_detector)
    return True
