"""Attaching to a process that uses torch, and leaving it as it was."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any

import torch
import torch.nn.utils.clip_grad
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_dataloader

from neuraldbg.capture.budget import SamplingBudget
from neuraldbg.capture.focus import kinds_of
from neuraldbg.capture.guard import Guard
from neuraldbg.capture.layers import layer_filter
from neuraldbg.capture.torch.backward import BackwardWatch
from neuraldbg.capture.torch.batches import BatchWatch
from neuraldbg.capture.torch.bypass import Bypass
from neuraldbg.capture.torch.compiled import CompiledWatch
from neuraldbg.capture.torch.core import Core, quick_shield, undisturbed
from neuraldbg.capture.torch.evidence import PROFILED, start_watchers
from neuraldbg.capture.torch.hooks import PassWatch
from neuraldbg.capture.torch.ledger import Ledger
from neuraldbg.capture.torch.patches import Patches
from neuraldbg.capture.torch.probes.runner import Probes
from neuraldbg.capture.torch.ranks import RankWatch
from neuraldbg.capture.torch.recorder import Recorder
from neuraldbg.capture.torch.stops import Stops
from neuraldbg.capture.torch.tree import ModuleTree, unwrap
from neuraldbg.capture.torch.updates import UpdateWatch
from neuraldbg.capture.torch.worker_seeds import WorkerSeeds
from neuraldbg.trace import TraceWriter

OVERHEAD_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """How a process is watched. `budget` is a share of the step time; None = every step in full, 0 = the ledger
    only."""

    budget: float | None = 0.01
    layers: tuple[str, ...] = ()
    model: Any = None  # watch only this nn.Module
    recording: bool = True
    stop_on_nan: bool = False  # raise StoppedOnNaN before a NaN or Inf reaches the weights
    arm_step: int | None = None  # from this update on every operation is watched until a NaN or Inf is found
    focus: tuple[str, ...] = ()  # groups of layer statistics that are wanted after the first updates; none is all
    profile: bool = False  # times of layers and phases only: no statistics, no evidence about faults
    memory: bool = False  # of a profiled run: also what layers allocate and keep
    gate: Any = None  # what may hold the training (control.Gate)
    patient: bool = False  # process groups are made to outlast a pause
    joined: Callable[[int], None] | None = None  # told the rank, once the process is one of a group of several
    inexact_taps: bool = False  # measure inside compiled code also where that changes last bits
    strict: bool = False  # tests: our own exceptions are not swallowed
    on_layer: tuple[Callable[..., None], ...] = field(default=())
    on_gradient: tuple[Callable[..., None], ...] = field(default=())


class TorchCapture:
    """Everything that watches one process. `close()` undoes all of it."""

    def __init__(self, open_writer: Callable[[], TraceWriter | None], options: Options) -> None:
        self.options = replace(options, model=None)  # the model is not kept alive
        self.pid = os.getpid()
        recorder = Recorder(open_writer)
        report = partial(recorder.note, "warning")
        guard = Guard(strict=options.strict, report=report, undisturbed=undisturbed, quick=quick_shield)
        tree = ModuleTree(recorder, only=options.model)
        tree.layer_filter = layer_filter(options.layers)
        self.recursion = DeeperRecursion()
        tree.on_depth = self.recursion.make_room
        recording = options.recording and not options.profile
        self.core = Core(recorder, tree, SamplingBudget(options.budget), guard, recording=recording)
        self.core.kinds = kinds_of(options.focus)
        self.core.on_layer += [guard.shield("layers for an observer")(observe) for observe in options.on_layer]
        self.core.on_gradient += [guard.shield("gradients for an observer")(observe) for observe in options.on_gradient]
        self.patches = Patches()
        self.passes = PassWatch(self.core)
        self.backward = BackwardWatch(self.core, self.passes)
        self.updates = UpdateWatch(self.core, self.passes, self.backward)
        self.seeds = WorkerSeeds(self.core, self.patches)
        self.batches = BatchWatch(self.core, self.seeds)
        self.ledger = Ledger(self.core, self.updates)
        self.bypass = Bypass(self.core, self.passes, self.patches)
        self.updates.now_and_then.append(self.bypass.after_update)
        self.updates.now_and_then.append(self._report_overhead)
        self.compiled = CompiledWatch(self.core, self.passes, self.patches, inexact=options.inexact_taps)
        self.ranks = RankWatch(self, patient=options.patient)
        self.watchers = self._watchers(options)
        if options.gate is not None:
            self.core.stops = Stops(self.core, self.passes._hook, options.gate, self.updates.sweep)
        self._reported_at = time.monotonic()
        self._dispatch: float | None = None
        self._closed = False
        self.end: dict[str, Any] = {}  # how the script ended, once it has
        if options.model is not None:
            guard.shield("the model given")(lambda: tree.walk(tree.top(unwrap(options.model)[0])))()
        self._install()

    def _watchers(self, options: Options) -> list[Any]:
        if not options.profile:
            return [*start_watchers(self), Probes(self)]
        from neuraldbg.capture.torch.timing import Timing

        return [Timing(self), *start_watchers(self, PROFILED)]

    # -- installing --------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        self._install_module_hooks()
        self._install_optimizer_hooks()
        self._install_ledger()
        replace = self.patches.replace
        replace(torch.autograd, "backward", self.backward.wrap_backward(torch.autograd.backward))
        replace(torch.autograd, "grad", self.backward.wrap_grad(torch.autograd.grad))
        replace(DataLoader, "__iter__", self.batches.wrap_iter(DataLoader.__iter__))
        iterator = torch_dataloader._BaseDataLoaderIter
        replace(iterator, "__next__", self.batches.wrap_next(iterator.__next__))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget_when_forked(self))

    def _install_module_hooks(self) -> None:
        handle = self.patches.handle
        guard, tree = self.core.guard, self.core.tree
        registered = guard.shield("module tree")(tree.child_registered)
        handle(torch_module.register_module_module_registration_hook(_returning_none(registered, self.core)))
        self.patches.replace(torch_module, "_has_any_global_hook", partial(_foreign_global_hooks))
        self.passes.hooks.install(self.patches)

    def _install_optimizer_hooks(self) -> None:
        handle, replace = self.patches.handle, self.patches.replace
        handle(torch_optimizer.register_optimizer_step_pre_hook(self.updates.pre_hook))
        handle(torch_optimizer.register_optimizer_step_post_hook(self.updates.post_hook))
        original = torch.optim.Optimizer.__init__
        created = self.core.guard.shield("optimizers")(self.updates.created)

        @wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if self.core.on:
                created(optimizer)

        replace(torch.optim.Optimizer, "__init__", __init__)
        replace(GradScaler, "step", self.updates.scaler_step(GradScaler.step))
        replace(GradScaler, "scale", self.backward.wrap_scale(GradScaler.scale))

    def _install_ledger(self) -> None:
        replace, ledger = self.patches.replace, self.ledger
        replace(torch.optim.Optimizer, "zero_grad", ledger.optimizer_zero_grad(torch.optim.Optimizer.zero_grad))
        replace(torch.optim.Optimizer, "load_state_dict", ledger.load_state(torch.optim.Optimizer.load_state_dict))
        replace(nn.Module, "zero_grad", ledger.module_zero_grad(nn.Module.zero_grad))
        replace(nn.Module, "load_state_dict", ledger.load_state(nn.Module.load_state_dict))
        replace(GradScaler, "unscale_", ledger.unscale(GradScaler.unscale_))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            clip = ledger.clip(getattr(torch.nn.utils, name))
            replace(torch.nn.utils, name, clip)
            replace(torch.nn.utils.clip_grad, name, clip)
        for scheduler in (LRScheduler, ReduceLROnPlateau):
            if "__init__" in vars(scheduler):
                replace(scheduler, "__init__", ledger.scheduler_created(vars(scheduler)["__init__"]))

    def _report_overhead(self, _: int) -> None:
        """Now and then, so that a killed run can tell as well."""
        now = time.monotonic()
        if now - self._reported_at > OVERHEAD_EVERY_S:
            self._reported_at = now
            self.core.recorder.fact("overhead", **self.overhead())
            self.updates.write_accumulation()

    def _dispatch_ns(self) -> float:
        """What one call of a module costs more because our hooks are there, between full steps. Not measured, and so
        left out, where the user has global hooks too: those must not see calls of ours."""
        if _foreign_global_hooks():
            return 0.0
        if self._dispatch is None:
            local, quiet = self.core.here.local, nn.Identity()
            kept = local.own_pass, local.pass_depth, list(local.stack)
            local.own_pass, local.pass_depth = self.passes.ignored, -1
            try:
                calls = self.passes.calls
                hooked = _time_of(quiet)
                self.passes.calls = calls
            finally:
                local.own_pass, local.pass_depth, local.stack[:] = kept
            self._dispatch = max(hooked - _time_of(quiet.forward), 0.0)
        return self._dispatch

    @property
    def last_step_sampled(self) -> bool:
        return self.core.budget.last_was_full

    # -- leaving -----------------------------------------------------------------------------------------------------

    def overhead(self) -> dict[str, Any]:
        """Our own time over the rest. Being called at all is part of it: torch's way through global hooks is measured
        once and counted for every call of a module. Unknown where several threads train: what is ours in one lies in
        the steps of another."""
        budget, alone = self.core.budget, self.core.trainers < 2
        dispatch = int(self.passes.calls * self._dispatch_ns())
        bare = budget.wall_ns - budget.own_ns - dispatch
        extra = dispatch / bare if bare > 0 else 0.0
        later = budget.ratio_after_start
        return {
            "ratio": (budget.own_ns + dispatch) / bare if bare > 0 and alone else None,
            "ratio_after_start": later + extra if later is not None and alone else None,
            "measured": list(budget.measured) if budget.measured is not None and alone else None,
            "sampled_steps": budget.sampled,
            "total_steps": budget.steps,
            "own_s": budget.own_ns / 1e9,
            "run_s": budget.wall_ns / 1e9,
            "period": budget.period,
            "watch_period": budget.watch_period,
        }

    def close(self, **end: Any) -> None:
        """Stop watching, undo every hook and patch, write the last rows. `end` = what is known of the script's end."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self.pid:
            return
        self.end = end
        finish = self.core.guard.shield("the end of the run")
        for part in (
            self.updates.finish,
            self.ledger.look_at_schedulers,
            *self.core.moments.ending,
            self.passes.finish,
            self.core.device.finish_sync,
            self.seeds.close,
        ):
            finish(part)()
        self._close_books()
        overhead = self.overhead()
        self.core.on, self.core.closed = False, True
        self.passes.quick.close()
        self.recursion.close()
        self.patches.close()
        self._let_go()
        recorder = self.core.recorder
        ending = {"steps": recorder.step, "backwards": self.core.backwards, "dropped": recorder.dropped(), **end}
        recorder.close([("overhead", overhead), ("end", ending)])

    def _close_books(self) -> None:
        now = time.perf_counter_ns()
        started = self.updates.step_started
        if started is not None:
            self.core.budget.books_closed(wall_ns=now - started, own_ns=self.core.own_ns)
            self.core.own_ns = 0
        if self.core.tree.layer_filter is not None and not self.core.tree.wanted_layers and len(self.core.tree.models):
            patterns = ", ".join(self.options.layers)
            self.core.recorder.note(
                "warning", f"--layers {patterns} matches no layer; neural inspect lists their names"
            )

    def _let_go(self) -> None:
        """Somebody may keep a function of ours for good (`from torch.autograd import grad`, Dynamo's tables): not us
        with it."""
        updates = self.updates
        watchers = (updates.on_update, updates.now_and_then, updates.before_update, self.passes.before_pass)
        observers = (self.core.on_layer, self.core.on_gradient)
        for notices in (*watchers, self.backward.before_backward, *observers):
            notices.clear()
        self.core.dismiss()
        self.watchers.clear()

    def forget(self) -> None:
        """In a forked child: hooks stay in place but do nothing, and nothing is written. Device buffers are left as
        they are: to free one is a CUDA call, and a forked process may make none."""
        self.core.on, self.core.closed = False, True
        self.core.recorder.abandon()


class DeeperRecursion:
    """With global hooks torch takes one more frame per nested module: a deep model gets back what that costs."""

    def __init__(self) -> None:
        self._before = self._ours = sys.getrecursionlimit()

    def make_room(self, depth: int) -> None:
        if depth > 20 and sys.getrecursionlimit() == self._ours:
            self._ours = max(self._ours, self._before + depth + 100)
            sys.setrecursionlimit(self._ours)

    def close(self) -> None:
        if sys.getrecursionlimit() == self._ours:
            sys.setrecursionlimit(self._before)


def _time_of(call: Callable[[Any], Any], calls: int = 12) -> float:
    """Nanoseconds of one call: the best of five rounds, since noise only adds."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(calls):
            call(None)
        best = min(best, (time.perf_counter_ns() - start) / calls)
    return best


def _foreign_global_hooks() -> bool:
    """What torch.compile asks before it warns that global hooks fire twice: ours know, so only others count."""
    tables = (
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
        torch_module._global_backward_hooks,
        torch_module._global_backward_pre_hooks,
    )
    return any(not str(hook.__module__).startswith("neuraldbg.") for table in tables for hook in table.values())


def _returning_none(observe: Callable[..., Any], core: Core) -> Callable[..., None]:
    """A registration hook's result would replace the module being registered."""

    def hook(*args: Any) -> None:
        if core.on:
            observe(*args)

    return hook


def _forget_when_forked(capture: TorchCapture) -> Callable[[], None]:
    """at-fork callbacks cannot be taken back: hold the capture weakly, so that a closed one is free to go."""
    ref = weakref.ref(capture)

    def forked() -> None:
        alive = ref()
        if alive is not None:
            alive.forget()

    return forked
