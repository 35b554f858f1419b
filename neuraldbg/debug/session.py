"""A debugging session: its parts, its run, its report."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

from neuraldbg.analysis.results import Verdict
from neuraldbg.capture.guard import attempt_or_why
from neuraldbg.debug.acting import Acting
from neuraldbg.debug.alerts import Alerts, AlertSeverity, TensorAlert
from neuraldbg.debug.architecture import is_whole
from neuraldbg.debug.delivery import Background
from neuraldbg.debug.diagnostics import ModelDiagnostics
from neuraldbg.debug.gradients import GradientDebugger, GradientFlowAnalysis
from neuraldbg.debug.hook_parts import HookContext, HookResult
from neuraldbg.debug.hooks import DebugHooks
from neuraldbg.debug.inspector import TensorInspector
from neuraldbg.debug.pausing import Pauses
from neuraldbg.debug.profiler import Profiler
from neuraldbg.debug.record import Record
from neuraldbg.debug.report import FILE, DebugReport
from neuraldbg.debug.session_plots import PAGE, draw
from neuraldbg.debug.settings import DebugConfig, config_from
from neuraldbg.debug.watched import WatchedModel
from neuraldbg.errors import UsageError

log = logging.getLogger("neuraldbg")


class DebugSession:
    """Everything the toolkit offers around one training, in one run.

    `tensor_inspector`, `gradient_debugger`, `model_diagnostics`, `hooks` and `profiler` are its parts; each may also be
    called, and has a `_mut` twin, as in the original. `start()`, `stop()` and `with` may be awaited or not.
    """

    def __init__(self, config: DebugConfig | None = None, **options: Any) -> None:
        self.config = config_from(config, options)
        self.id = time.strftime("%Y%m%d-%H%M%S") + f"-{id(self) & 0xFFFF:04x}"
        out = self.config.output_dir
        self._record = Record(None if out is None else Path(out))
        self.alerts = Alerts(self.config, self._tell_trace, self.id)
        self.tensor_inspector = TensorInspector(self.config, self._record, self.alerts)
        self.gradient_debugger = GradientDebugger(self.config, self._record)
        self.model_diagnostics = ModelDiagnostics(self.config, self._record)
        self.profiler = Profiler(self._record)
        self.pauses = Pauses()
        self._background = Background("neuraldbg-snapshots")
        parts = (self._record, self.tensor_inspector, self.gradient_debugger, self.alerts, self._background)
        self._acting = Acting(self.config, *parts, self._latest_loss, self._pause)
        self.hooks = DebugHooks(self.config, self._acting)
        self._watched: WatchedModel | None = None
        self._unreadable = False
        self._report: DebugReport | None = None
        self._began = time.monotonic()
        self._stopping = threading.RLock()

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, model: Any = None) -> DebugSession:
        """With a torch model, it is watched until `stop`."""
        self._must_run("start")
        self._began = time.monotonic()
        if model is not None:
            self.attach(model)
        return self

    def attach(self, model: Any) -> DebugSession:
        """Watch a torch model: layers, losses and gradients are recorded and judged, and hooks act on its layers."""
        self._must_run("attach")
        if self._watched is not None or self._record.is_open:
            what = "a model is attached" if self._watched is not None else "something was recorded"
            raise UsageError(f"{what} already: attach a model first, or begin another session")
        watched = WatchedModel(model, out=self._record.out(), budget=self.config.budget)
        self._watched = watched
        self._record.use(watched.recorder, watched.dbg.run_dir)
        self.gradient_debugger.pull = partial(self._read, lambda: watched.read_gradients(self.gradient_debugger))
        self.model_diagnostics.pull = partial(self._read, lambda: watched.read_losses(self.model_diagnostics))
        self._read_architecture()
        self.hooks.follow(watched.tell(self.hooks), compiled=watched.is_compiled())
        return self

    def _read_architecture(self) -> None:
        """At once; of a model with lazy layers when it has run."""
        model = None if self._watched is None else self._watched.model
        if model is not None and self.model_diagnostics.architecture is None and is_whole(model):
            self.model_diagnostics.record_architecture(model)

    def stop(self, error: BaseException | None = None) -> DebugReport:
        """Ends the run, takes every hook away and says what was found. A second call gives the same report."""
        with self._stopping:
            if self._report is None:
                self.hooks.on_change.clear()
                self._read_architecture()
                if self._watched is not None and self.step:
                    self.hooks.closing()
                if self._watched is not None:
                    self._watched.close(error)
                verdict = self._verdict()
                self._background.close()
                report = self._report_now(verdict)
                self._record.close(error)
                self._save(report)
                self.alerts.close()
                self._report = report
            return self._report

    def _verdict(self) -> Verdict | None:
        if self._watched is None or not self.config.enable_computation_graph_analysis:
            return None
        found: Verdict | None = self._read(self._watched.verdict)
        return found

    def _read(self, what: Callable[[], Any]) -> Any:
        """From the trace. What has become of its files is no matter of the training's: said once."""
        found, why = attempt_or_why(what)
        if why is not None and not self._unreadable:
            self._unreadable = True
            log.warning("what was recorded cannot be read: %s", why)
        return found

    def _save(self, report: DebugReport) -> None:
        if report.run_dir is not None:
            try:
                report.save(report.run_dir / FILE)
            except OSError as error:
                log.warning("the report is not written: %s", error)

    def _drawn(self, gradients: GradientFlowAnalysis | None) -> Path | None:
        """The page of plots, where it was asked for and there is something to draw."""
        if not self.config.enable_visualization or self.run_dir is None:
            return None
        health = {} if gradients is None else {name: one.health for name, one in gradients.layers.items()}
        told = (self.model_diagnostics.history, self.gradient_debugger.flows(), health)
        drawn, why = attempt_or_why(partial(draw, self.run_dir / PAGE, *told))
        if why is not None:
            log.warning("the plots are not written: %s", why)
        page: Path | None = drawn
        return page

    def _must_run(self, what: str) -> None:
        if self._report is not None:
            raise UsageError(f"this session has stopped: {what} another one")

    def __enter__(self) -> DebugSession:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.stop(error)

    async def __aenter__(self) -> DebugSession:
        return self.start()

    async def __aexit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.stop(error)

    def __await__(self) -> Generator[Any, None, DebugSession]:
        return _itself(self).__await__()

    def __repr__(self) -> str:
        state = "stopped" if self._report is not None else "watching" if self._watched is not None else "open"
        return f"<DebugSession {self.id} {state}, step {self.step}, {self.run_dir or 'nothing written'}>"

    # -- parts, by the original's names ------------------------------------------------------------------------------

    def tensor_inspector_mut(self) -> TensorInspector:
        """As in the original: the part itself."""
        return self.tensor_inspector

    def gradient_debugger_mut(self) -> GradientDebugger:
        """As in the original: the part itself."""
        return self.gradient_debugger

    def model_diagnostics_mut(self) -> ModelDiagnostics:
        """As in the original: the part itself."""
        return self.model_diagnostics

    def hooks_mut(self) -> DebugHooks:
        """As in the original: the part itself."""
        return self.hooks

    def profiler_mut(self) -> Profiler:
        """As in the original: the part itself."""
        return self.profiler

    # -- steps -------------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """That what is recorded now belongs to."""
        return self._record.step

    def set_step(self, step: int) -> None:
        """From here on what is recorded belongs to this step. Without it, whatever is recorded again begins the next
        one; a watched model counts its own updates."""
        self._record.go_to(step)

    @property
    def run_dir(self) -> Path | None:
        """Where it is recorded: `neural report` and `neural view` open it. None before anything is."""
        return self._record.directory

    def alert(self, message: str, severity: AlertSeverity = AlertSeverity.Warning, layer: str | None = None) -> None:
        """One of your own."""
        self.alerts.raised(TensorAlert("Custom", severity, message, layer, None, self.step))

    def clear(self) -> None:
        """Forgets what is kept in memory; the trace has it."""
        for part in (self.tensor_inspector, self.gradient_debugger, self.model_diagnostics, self.profiler, self.alerts):
            part.clear()

    # -- pauses ------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Lets a training go on that a hook has paused; from another thread."""
        self.pauses.resume()

    def on_pause(self, function: Callable[[HookContext], Any]) -> None:
        """Called in the training thread when a hook pauses it; training goes on when it returns."""
        self.pauses.on_pause = function

    def _pause(self, context: HookContext, hook: str) -> HookResult:
        if self._watched is not None and self.pauses.on_pause is None:
            gate = self._watched.dbg._gate
            if gate.answered():
                gate.pause(f"hook {hook!r} at {context.layer}")
                return HookResult.Success
        return self.pauses.hold(context, hook, terminal=sys.stdin)

    # -- what the parts need -----------------------------------------------------------------------------------------

    def _latest_loss(self) -> float | None:
        seen = None if self._watched is None else self._watched.loss()
        return self.model_diagnostics.latest_loss if seen is None else seen

    def _tell_trace(self, alert: TensorAlert) -> None:
        told = alert.plain()
        self._record.fact("alert", at_step=told.pop("step"), **told)

    def _report_now(self, verdict: Verdict | None) -> DebugReport:
        config, kept = self.config, len(self.tensor_inspector.get_tensors())
        self._record.open()
        gradients = self.gradient_debugger.analyze_gradient_flow() if config.enable_gradient_debugging else None
        return DebugReport(
            session_id=self.id,
            run_dir=self.run_dir,
            duration_s=time.monotonic() - self._began,
            steps=self._record.steps,
            tracked_tensors=kept,
            evicted_tensors=self.tensor_inspector.evicted,
            alerts=tuple(self.alerts),
            alert_counts=self.alerts.counts(),
            gradients=gradients,
            diagnostics=self.model_diagnostics.analyze() if config.enable_model_diagnostics else None,
            memory=self.tensor_inspector.memory_report() if config.enable_memory_profiling else {},
            hooks=self.hooks.get_all_stats(),
            profiler=self.profiler.report(),
            verdict=verdict,
            dashboard=self._drawn(gradients),
        )


def debug_session(model: Any = None, **options: Any) -> DebugSession:
    """A session with the defaults, or with `DebugConfig`'s settings as keywords; with a torch model, attached to it."""
    session = DebugSession(**options)
    return session if model is None else session.attach(model)


async def _itself(value: DebugSession) -> DebugSession:
    return value
