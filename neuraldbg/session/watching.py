"""NeuralDbg inside a program: watches one model (or all), answers about the step just done and about the past."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuraldbg.analysis import gradients as judge
from neuraldbg.analysis import inspection as look
from neuraldbg.analysis.catalogue import named
from neuraldbg.analysis.results import (
    GradientHealthReport,
    GradientHistory,
    GradientRecord,
    LayerReport,
    StepRecord,
    TensorState,
)
from neuraldbg.config import parse_budget
from neuraldbg.config.installation import refuse_namesake
from neuraldbg.control.breakpoints import Breakpoints
from neuraldbg.control.gate import Gate, Prompt
from neuraldbg.errors import NotRecorded, UnknownName, UsageError, uncaught
from neuraldbg.records import RunInfo, Stop
from neuraldbg.session.page import Page
from neuraldbg.session.past import AUTO, FULL, REMADE, check_record, made_again, start_recording
from neuraldbg.session.reasons import Reasons
from neuraldbg.trace import Trace, TraceWriter, create_run, open_trace
from neuraldbg.trace.rundir import new_run_info

RECENT = 64  # norms per layer that a gradient is compared with
REMEMBERED_STEPS = 100_000
_WHAT = ("output", "input", "gradient")


find_prompt: Callable[[], Prompt | None] | None = None  # set by who may import surfaces


class NeuralDbg(Reasons):
    """Watches training in this process.

    ```python
    with NeuralDbg(model) as dbg:
        ...
        dbg.capture_step(step)
    ```
    Without a model every model of the process is watched. Nothing of it remains after `close()` but the recorded run.
    """

    def __init__(  # noqa: PLR0913  the signature of the contract
        self,
        model: Any = None,
        *,
        out: str | os.PathLike[str] | None = None,
        budget: str = "1%",
        layers: str | Sequence[str] | None = None,
        record: bool | str = True,
        dashboard: bool = False,
        threshold_vanishing: float | None = None,
        threshold_exploding: float | None = None,
    ) -> None:
        if model is not None and not hasattr(model, "named_parameters"):
            raise UsageError(f"NeuralDbg watches an nn.Module; got {type(model).__name__}")
        self._model = model
        self._out = None if out is None else Path(out)
        self._budget = parse_budget(budget)
        self._layers = (layers,) if isinstance(layers, str) else tuple(layers or ())
        check_record(record)
        self._record = record
        self._tape: Any = None
        self._page: Page | None = None
        self._serving = dashboard
        self._vanishing = threshold_vanishing
        self._exploding = threshold_exploding
        self._capture: Any = None
        self._ring: Any = None
        self._trace: Trace | None = None
        self._run_dir: Path | None = None
        self._recent: dict[str, deque[tuple[int, float]]] = {}
        self._shape: dict[str, tuple[int, bool]] = {}
        self._own_step: dict[int, int] = {}  # the user's step number -> ours
        self._last: StepRecord | None = None
        self._closed = False
        self._began = 0.0
        self._iterated = 0  # steps at the last step_iteration()
        self._gate = Gate(say=lambda text: print(f"neuraldbg: {text}", file=sys.stderr, flush=True))

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> NeuralDbg:
        """What `with` does on entry."""
        from neuraldbg.capture.torch.attach import Options, TorchCapture
        from neuraldbg.capture.torch.inprocess import SnapshotRing

        if self._capture is not None:
            return self
        refuse_namesake()
        info = self._info()
        self._run_dir = create_run(info, out=self._out)
        writer = TraceWriter(self._run_dir)
        writer.fact("run", backend="pytorch", versions={"torch": str(sys.modules["torch"].__version__)})
        self._ring = SnapshotRing()
        options = Options(
            budget=None if self._budget.full else self._watching_share(),
            layers=self._layers,
            model=self._model,
            recording=self._record not in (False, "off"),
            on_layer=(self._ring.saw_layer,),
            on_gradient=(self._ring.saw_gradient,),
            gate=self._gate,
        )
        self._gate.run_dir, self._gate.watched_every = self._run_dir, writer.watched
        self._gate.prompt = None if find_prompt is None else find_prompt()
        self._capture = TorchCapture(lambda: writer, options)
        self._capture.updates.on_update.append(self._ring.step_done)
        self._tape = start_recording(self._capture, self._record, self._budget.for_recording)
        self._capture.updates.sweep.keep_norms = True
        if self._serving:
            self._page = Page(self._run_dir, self._gate)
        self._began = time.monotonic()
        atexit.register(self._at_exit)
        _ = self._capture.core.recorder.writer  # a session always has a trace, also when nothing is ever trained
        return self

    def _watching_share(self) -> float:
        """Both together stay within the budget."""
        own = self._budget.for_recording if self._record in (True, AUTO) else 0.0
        return float(self._budget.ratio) - own

    def _info(self) -> RunInfo:
        return new_run_info(tuple(sys.argv), script=sys.argv[0] or None, budget=str(self._budget))

    def close(self, error: BaseException | None = None) -> None:
        """Take every hook away and finish the trace. Questions about the past can still be asked."""
        if self._capture is not None and not self._closed:
            self._closed = True
            atexit.unregister(self._at_exit)
            said = None if error is None else f"{type(error).__name__}: {error}"
            duration = time.monotonic() - self._began
            self._capture.close(exit_code=0 if error is None else 1, error=said, duration_s=duration)
            self._model = None
            if self._record != FULL:
                self._tape = None  # it has the model
            if self._page is not None:
                self._page.close()

    def _at_exit(self) -> None:
        self.close(uncaught())

    def __enter__(self) -> NeuralDbg:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.close(error)

    def __repr__(self) -> str:
        state = "not started" if self._capture is None else "closed" if self._closed else "watching"
        where = "" if self._run_dir is None else f", {self.step} updates in {self._run_dir}"
        return f"<NeuralDbg {state}{where}>"

    @property
    def run_dir(self) -> Path:
        """Where this run is recorded."""
        return Path(self._started(self._run_dir))

    @property
    def step(self) -> int:
        """Updates seen so far."""
        return int(self._started(self._capture).core.recorder.step)

    @property
    def trace(self) -> Trace:
        """The recorded run, up to this moment."""
        from neuraldbg.capture.torch.inprocess import settle_sync

        capture = self._started(self._capture)
        settle_sync(capture)
        if self._trace is None:
            self._trace = open_trace(self.run_dir)
        else:
            self._trace.refresh()
        return self._trace

    @property
    def events(self) -> list[Any]:
        """Executions of layers whose tensors are still stored, oldest first."""
        return list(self._started(self._ring))

    def _started(self, part: Any) -> Any:
        if part is None:
            raise UsageError("this NeuralDbg has not started: use `with NeuralDbg(model) as dbg:` or `dbg.start()`")
        return part

    # -- the step just done ------------------------------------------------------------------------------------------

    def capture_step(self, step: int | None = None) -> StepRecord:
        """Look at the update just done. Optional: updates are counted and recorded without it."""
        capture = self._started(self._capture)
        capture.updates.by_hand.look()
        ours = max(capture.core.recorder.step - 1, 0)
        if step is not None:
            self._own_step[step] = ours
            if len(self._own_step) > REMEMBERED_STEPS:
                del self._own_step[next(iter(self._own_step))]
        shown = ours if step is None else step
        records = self._look(shown)
        total = look.joined_norm(record.norm for record in records.values())
        self._last = StepRecord(shown, *self._latest_scalars(), total, records)
        return self._last

    def _look(self, step: int) -> dict[str, GradientRecord]:
        """Every layer's gradient as it stands now; the last known one where gradients have been cleared meanwhile."""
        from neuraldbg.capture.torch.inprocess import gradients_now_sync

        now = gradients_now_sync(self._started(self._capture))
        if not now:
            return dict(self._last.gradients) if self._last is not None else {}
        records = {}
        for layer, parts in look.by_layer(now).items():
            record = look.gradient_record(step, [part.measured for part in parts])
            records[layer] = record
            self._shape[layer] = (sum(p.measured[0] for p in parts), any(p.is_weight for p in parts))
            recent = self._recent.setdefault(layer, deque(maxlen=RECENT))
            if not recent or recent[-1][0] != step:
                recent.append((step, float("nan") if record.norm is None else record.norm))
        return records

    def _latest_scalars(self) -> tuple[float | None, float | None]:
        latest = self._started(self._capture).core.recorder.latest
        return latest.get("loss"), latest.get("lr")

    def _recent_layers(self) -> dict[str, judge.LayerGradients]:
        if self._last is None or self._last.step != self._shown_step():
            self._look(self._shown_step())
        return {
            layer: judge.LayerGradients([s for s, _ in seen], [n for _, n in seen], *self._shape[layer])
            for layer, seen in self._recent.items()
        }

    def _shown_step(self) -> int:
        ours = max(self.step - 1, 0)
        return next((user for user, own in reversed(self._own_step.items()) if own == ours), ours)

    def has_vanishing_gradients(self, threshold: float | None = None) -> bool:
        """Whether some layer's gradient has faded at the step just done (relative to the strongest layer, or below
        `threshold`)."""
        limit = self._vanishing if threshold is None else threshold
        return bool(judge.vanishing(self._recent_layers(), threshold=limit))

    def has_exploding_gradients(self, threshold: float | None = None) -> bool:
        """Whether some layer's gradient is NaN, infinite, or far above its own past (or above `threshold`)."""
        limit = self._exploding if threshold is None else threshold
        return bool(judge.exploding(self._recent_layers(), threshold=limit))

    def record_loss(self, loss: Any) -> None:
        """Write down a loss the debugger cannot see by itself, such as one of a validation set (series `loss.user`)."""
        value = loss.detach() if hasattr(loss, "detach") else loss
        self._started(self._capture).core.recorder.scalar("loss.user", float(value))

    def record_metric(self, name: str, value: Any) -> None:
        """Write down a number of your own (series `user.<name>`): it is stored, exported and watched for anomalies."""
        number = value.detach() if hasattr(value, "detach") else value
        self._started(self._capture).core.recorder.scalar(f"user.{name}", float(number))

    # -- the past ----------------------------------------------------------------------------------------------------

    def inspect_layer(self, name: str) -> LayerReport:
        """The latest that is known of a layer: input, output, gradient and weight statistics, health, first bad
        step."""
        limits = {"vanishing": self._vanishing, "exploding": self._exploding}
        report = look.layer_report(self.trace, name, **limits)
        if report.input is None:
            report = replace(report, input=self._stored_input(report.layer))
        return report

    def _stored_input(self, layer: str) -> dict[str, Any] | None:
        from neuraldbg.capture.torch.inprocess import describe

        path = self.trace.site(layer).path
        found = [event for event in self.events if event.layer_name == path and event.input is not None]
        return {"step": found[-1].step, **describe(found[-1].input)} if found else None

    def inspect(self, layer_name: str, step: int | None = None, what: str = "output") -> TensorState:
        """A layer's tensor (`output`, `input` or `gradient`) at a past step: as it was stored, or with `record="full"`
        made again, also `weight` and `weight_gradient`, with the words that prove it in `.source`."""
        from neuraldbg.capture.torch.inprocess import describe

        known = _WHAT if self._tape is None else REMADE
        if what not in known:
            raise UnknownName("tensor", what, known, listed_by=f"one of {', '.join(known)}:")
        site = self.trace.site(layer_name)
        path = site.path
        wanted = None if step is None else self._own_step.get(step, step)
        stored = [event for event in self.events if event.layer_name == path and getattr(event, what, None) is not None]
        chosen = [event for event in stored if wanted is None or event.step == wanted]
        why = ""
        if not chosen and self._tape is not None and wanted is not None:
            try:
                tensor, proof = made_again(self._tape, self._capture, site, wanted, what)
                return TensorState(path, step or 0, what, tensor, describe(tensor), proof)
            except NotRecorded as error:
                renumbered = any(user != ours for user, ours in self._own_step.items())
                why = f"; {error}" + (" (updates of this session, counted from 0)" if renumbered else "")
        if not chosen:
            users = {ours: user for user, ours in self._own_step.items()}
            steps = sorted({users.get(event.step, event.step) for event in stored})
            raise NotRecorded(_not_stored(f"{what} of {layer_name!r}", step, steps, self._ring) + why)
        event = chosen[-1]
        tensor = getattr(event, what)
        return TensorState(path, event.step if step is None else step, what, tensor, describe(tensor))

    def get_gradient_history(self, name: str) -> GradientHistory:
        """The gradient of a layer's parameters at every step that was looked at."""
        return look.gradient_history(self.trace, name)

    def analyze_gradient_health(self) -> GradientHealthReport:
        """Every layer's gradient over the whole run, judged."""
        limits = {"vanishing": self._vanishing, "exploding": self._exploding}
        return look.gradient_health(self.trace, **limits)

    # -- stopping ----------------------------------------------------------------------------------------------------

    @property
    def breakpoints(self) -> Breakpoints:
        """`dbg.breakpoints.add("fc1", "grad_norm < 1e-6")`; a stop opens the prompt where somebody sits at a
        terminal, and is only counted where nobody does."""
        return self._gate.breakpoints

    def break_when(self, function: Callable[[Stop], Any]) -> None:
        """Stop where a function of yours is true. It is called after every layer, forward and backward, and after
        every update, with `.step`, `.phase`, `.layer`, `.values` and `.tensors()`."""
        if not callable(function):
            raise UsageError(f"break_when takes a function of a stop; got {type(function).__name__}")
        self._gate.break_when(function)

    def break_on(self, kind: str) -> None:
        """Stop when this is found: gradients and losses at the very update, any other id of `neural explain` when
        `diagnose()` finds it."""
        known = named(kind).id
        self._gate.break_on(known)
        if self._capture is not None:
            self._capture.core.stops.watch_norms()

    def register_composite_hook(self, module: Any) -> None:
        """Watch a container as a whole too: the statistics of what it hands out and of their gradient."""
        layer = self._started(self._capture).core.tree.find(module)
        if layer is None:
            raise UsageError(f"this {type(module).__name__} is no part of a model that is watched")
        layer.watched = True

    def step_iteration(self) -> int:
        """End an iteration by hand, in a loop that makes no update the debugger could see; where an update has ended
        it already, nothing happens. Returns the number of iterations so far."""
        capture = self._started(self._capture)
        capture.updates.by_hand.look()
        if self.step == self._iterated:
            capture.updates.update_done(1)
        self._iterated = self.step
        return self.step


def _not_stored(tensor: str, step: int | None, steps: list[int], ring: Any) -> str:
    if steps:
        known = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
        return f"no {tensor} at step {step} is stored; {known} are in memory ({len(steps)} in all)"
    if ring.evicted or ring.too_large:
        return f"no {tensor} is in memory any more: the newest {ring.limit_bytes / 1e6:.0f} MB of tensors are kept"
    return f"no {tensor} is stored: it has not run on a sampled step; budget='full' samples every step"


def watch(model: Any, optimizer: Any = None, **options: Any) -> NeuralDbg:
    """The same as `with NeuralDbg(model)`, without the `with`: call `.close()` when done."""
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise UsageError(f"watch() takes a torch optimizer; got {type(optimizer).__name__}")
    return NeuralDbg(model, **options).start()
