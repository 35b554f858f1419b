"""One process among several: which one it is, what it sends and waits for, and what others can compare it with.

Nothing here sends anything: collectives are counted and timed where the script makes them, and none is added. Until a
process group of more than one process exists, no function of ours is called in any step.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.place import here, place_of
from neuraldbg.capture.torch.core import cannot_look, now_ns
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.overlap import Overlap
from neuraldbg.capture.torch.rank_digests import RankDigests, is_due
from neuraldbg.capture.torch.shards import Shards, WouldWait, sharding_of, undisturbed_by_shards, why_not_again
from neuraldbg.capture.torch.standing import Standing
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.records import Call, SiteKind

COLLECTIVES = (
    "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_gather_single all_reduce "
    "all_reduce_coalesced all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list "
    "gather gather_object irecv isend monitored_barrier recv reduce reduce_scatter reduce_scatter_single "
    "reduce_scatter_tensor scatter scatter_object_list send _all_gather_base _reduce_scatter_base"
).split()
_EXPERIMENTS = tuple(os.path.join(os.path.dirname(__file__), name) for name in ("origin", "probes"))
TIMEOUT_AT = {"init_process_group": 2, "new_group": 1, "split_group": 2}  # where it stands among the arguments
PATIENCE = timedelta(hours=24)  # of process groups, where a pause is possible
FORKED = "neuraldbg: this process was forked and is not watched; ranks of mp.spawn and of launchers (torchrun) are"
TOLD_PATIENCE = "a pause is possible, so process groups wait 24 h for a rank (--headless leaves their time-outs alone)"


@dataclass(eq=False)
class Traffic:
    """Of one collective in one group, since the last update."""

    site: int
    calls: int = 0
    size: int = 0  # bytes
    waited_ns: int = 0

    def add(self, size: int, waited_ns: int) -> None:
        self.calls, self.size, self.waited_ns = self.calls + 1, self.size + size, self.waited_ns + waited_ns


class RankWatch:
    def __init__(self, capture: Any, *, patient: bool) -> None:
        self.capture = capture
        self.core = capture.core
        self.active = False
        self.patient = patient
        self.collectives = 0
        self._traffic: dict[tuple[str, str], Traffic] = {}
        self._local = threading.local()
        self._sync_ns = 0  # since the last update: in collectives, and at the end of backward
        self._own_backward_ns = 0
        self._computed_ns: int | None = None
        self._computed_sync_ns = 0
        self._began_ns = 0
        self._handle: Any = None
        self._told_shards: set[int] = set()
        self._told_patience = False
        self._standing: Standing | None = None
        self._pid = os.getpid()
        self._backwards = 0  # since the last update
        self._sends: int | None = None  # bytes, by the wrapper, in the backward under way
        self._averaged = self._told_unsynced = False  # whether one of them puts gradients together
        self.shards = Shards()
        self.overlap = Overlap()
        self.digests = RankDigests(self.core)
        shield = self.core.guard.shield
        self._done = shield("collectives")(self._took)
        self._join = shield("the process group")(self._joined)
        self._await = shield("standing ranks")(self._joins)
        self._ready = shield("the end of a backward")(self._gradients_ready)
        if dist.is_available():
            self._install(capture.patches)
            shield("the process group")(self._look_for_group)()

    # -- the patched functions ---------------------------------------------------------------------------------------

    def _install(self, patches: Any) -> None:
        from torch.distributed import device_mesh  # a build without torch.distributed has none

        owners = [dist, dist.distributed_c10d, device_mesh]  # a mesh makes groups by names of its own
        for name in COLLECTIVES:
            original = getattr(dist.distributed_c10d, name, None)
            if original is not None:
                self._replace(patches, owners, name, self._counted(name.lstrip("_"), original))
        for name in TIMEOUT_AT:
            original = getattr(dist.distributed_c10d, name, None)
            if original is not None:
                self._replace(patches, owners, name, self._groups(name, original))
        wrapper = torch.nn.parallel.DistributedDataParallel
        patches.replace(wrapper, "__init__", self._wrapped(wrapper.__init__))
        mesh = device_mesh.DeviceMesh
        patches.replace(mesh, "__init__", self._meshed(mesh.__init__))
        work = getattr(dist, "Work", None)
        if work is not None and hasattr(work, "wait"):
            patches.replace(work, "wait", self._waited(work.wait))
        self.core.take_part("optimizer_created", "the process group", self._look_for_group)

    def _replace(self, patches: Any, owners: list[Any], name: str, value: Any) -> None:
        for owner in owners:
            if name in vars(owner):
                patches.replace(owner, name, value)

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        core, names = self.core, attempt(lambda: tuple(inspect.signature(original).parameters)) or ()

        @wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if not self.active or cannot_look() or getattr(self._local, "inside", False):
                return original(*args, **kwargs)
            if not core.on:
                if _experimenting():
                    raise WouldWait(f"{name} needs the other ranks")
                return original(*args, **kwargs)
            start, self._local.inside = now_ns(), True
            try:
                result = original(*args, **kwargs)
            finally:
                self._local.inside = False
            self._done(name, {**dict(zip(names, args, strict=False)), **kwargs}, start, result)
            return result

        return collective

    def _waited(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Work.wait: what an asynchronous collective really costs."""

        @wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.active or getattr(self._local, "inside", False):
                return original(work, *args, **kwargs)
            start = now_ns()
            result = original(work, *args, **kwargs)
            end = now_ns()
            self._sync_ns += end - start
            self.overlap.waited(work, start, end)
            return result

        return wait

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper that is made and never called is worth knowing of."""
        tell = self.core.guard.shield("wrappers")(self._tell_wrapper)

        @wraps(original)
        def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            if self.core.on:
                tell(wrapper)

        return __init__

    def _meshed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Tensors that are spread over ranks need a mesh first: from then on nothing of ours touches one."""

        @wraps(original)
        def __init__(mesh: Any, *args: Any, **kwargs: Any) -> None:
            guard = self.core.guard
            guard.undisturbed, guard.unheard = undisturbed_by_shards, (WouldWait,)
            original(mesh, *args, **kwargs)

        return __init__

    def _tell_wrapper(self, wrapper: Any) -> None:
        self._look_for_group()
        self.overlap.wraps(wrapper)
        self.core.recorder.fact(
            "wrapper",
            **{"class": type(wrapper).__name__},
            line=self.core.recorder.frames.line(2),
            parameter_bytes=sum(p.numel() * p.element_size() for p in wrapper.parameters()),
        )

    def _groups(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        at = TIMEOUT_AT[name]

        @wraps(original)
        def made(*args: Any, **kwargs: Any) -> Any:
            if self.patient and self.core.on:
                args, kwargs = self._with_patience(at, args, kwargs)
            if name == "init_process_group":
                (self._await if self.core.on else self._tell_forked)()
            result = original(*args, **kwargs)
            if self.core.on and name == "init_process_group":
                self._join()
            return result

        return made

    def _with_patience(self, at: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = args[at] if len(args) > at else kwargs.get("timeout")
        if isinstance(given, timedelta) and given >= PATIENCE:
            return args, kwargs
        self._told_patience = True
        if len(args) > at:
            return (*args[:at], PATIENCE, *args[at + 1 :]), kwargs
        return args, {**kwargs, "timeout": PATIENCE}

    # -- the group ---------------------------------------------------------------------------------------------------

    def _look_for_group(self, _: Any = None) -> None:
        """A mesh or a library may have made one out of our sight."""
        if not self.active and dist.is_available() and dist.is_initialized():
            self._joined()

    def _joined(self) -> None:
        world = dist.get_world_size()
        if self.active or world < 2:
            return
        core, place = self.core, place_of(os.environ)
        core.recorder.fact(
            "process",
            group_rank=dist.get_rank(),
            world_size=world,
            local_rank=None if place is None else place.local_rank,
            node=None if place is None else place.node,
            attempt=0 if place is None else place.attempt,
            backend=attempt(dist.get_backend),
            **here(),
        )
        if self._told_patience and dist.get_rank() == 0:
            core.recorder.note("info", TOLD_PATIENCE)
        self.active = True
        core.leads = dist.get_rank() == 0
        core.why_not_again = why_not_again
        self.capture.updates.sweep.local = self.shards.local
        core.take_part("backward_begun", "waiting in backward", self._backward_begins)
        core.take_part("backward_done", "waiting in backward", self._backward_over)
        core.take_part("update_begun", "what ranks compare", self._update_begins)
        core.take_part("update_done", "what ranks wait for", self._update_over)
        self._tell_standing()
        if self.capture.options.joined is not None:
            core.guard.shield("joining")(self.capture.options.joined)(dist.get_rank())

    def _joins(self) -> None:
        """It may wait for a rank that never comes."""
        place = place_of(os.environ)
        if place is not None and place.world_size > 1:
            self._tell_standing()

    def _tell_forked(self) -> None:
        """The trace is the parent's, and nobody else would say why there is nothing in it."""
        if os.getpid() != self._pid and sys.stderr is not None:
            attempt(lambda: print(FORKED, file=sys.stderr, flush=True))

    def _tell_standing(self) -> None:
        recorder = self.core.recorder
        if self._standing is None and recorder.writer is not None:
            number_of = self._number_of
            self._standing = Standing(recorder.frames, self._progress, recorder.fact, number_of=number_of)
            recorder.writer.add_source(self.core.guard.shield("standing ranks")(self._standing.look))

    def _progress(self) -> tuple[int, ...]:
        core = self.core
        done = (core.recorder.step, core.backwards, self.collectives, self.capture.passes.calls)
        return (*done, core.held_ns, self.active)

    def _number_of(self, where: str) -> int | None:
        """Of the collective that is under way; those that a wrapper makes by itself are not counted."""
        return self.collectives + 1 if where in COLLECTIVES else None

    # -- what is sent ------------------------------------------------------------------------------------------------

    def _took(self, name: str, given: dict[str, Any], start: int, result: Any) -> None:
        end, sent = now_ns(), next(iter(tensors(given)), None)
        self.collectives += 1
        self._traffic_of(name, _label(given.get("group"))).add(size_of(given), end - start)
        if sent is not None and sent.device.type == "cpu":
            self.overlap.takes(result if given.get("async_op") else None, start, end)
        self._sync_ns += end - start
        self.core.own_ns += now_ns() - end

    def _traffic_of(self, name: str, label: str) -> Traffic:
        known = self._traffic.get((name, label))
        if known is None:
            path = name if label == "world" else f"{name}:{label}"
            site = self.core.recorder.add_site(path, SiteKind.COLLECTIVE, op=label)
            known = self._traffic[name, label] = Traffic(site)
        return known

    # -- what is waited for ------------------------------------------------------------------------------------------

    def _backward_begins(self, loss: Tensor | None, _: int) -> None:
        self._computed_ns, self._began_ns = None, now_ns()
        self._backwards += 1
        self._averaged = self._averaged or self.overlap.averages() is not False
        self._sends = self.overlap.sends(self.core.tree.layers)
        if loss is not None and not loss.is_cuda and loss.requires_grad and loss.grad_fn is not None:
            self._handle = loss.register_hook(self._ready)  # type: ignore[no-untyped-call]

    def _gradients_ready(self, _: Any) -> None:
        """The first thing of a backward asks to be called when its last gradient is there: before the wrapper of the
        model waits for those of the other ranks, which it asks for later."""
        torch.autograd.Variable._execution_engine.queue_callback(self._computed)

    def _computed(self) -> None:
        self._computed_ns, self._computed_sync_ns = now_ns(), self._sync_ns

    def _backward_over(self, _: Any) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        computed, self._computed_ns = self._computed_ns, None
        if computed is None:
            return
        ended = self.capture.backward.ended_ns
        counted = self._sync_ns - self._computed_sync_ns  # by the collectives that came after it
        waited = max(ended - computed - counted, 0)
        self._sync_ns += waited
        if self._sends:
            self._traffic_of("all_reduce", "DistributedDataParallel").add(self._sends, waited)
        self._own_backward_ns += max(computed - self._began_ns, 0)

    # -- an update ---------------------------------------------------------------------------------------------------

    def _update_begins(self, optimizer: Any, _: Any) -> None:
        core = self.core
        site_of = core.tree.parameter_site.get
        step, count = core.recorder.step, sum(len(group["params"]) for group in optimizer.param_groups)
        if not is_due(step, count):
            return
        found = [(site, p) for p in owned(optimizer) if (site := site_of(p)) is not None]
        self._tell_shards([each for each in found if each[0] not in self._told_shards])
        self.digests.update_begun(found)

    def _tell_shards(self, fresh: list[tuple[int, Tensor]]) -> None:
        self._told_shards.update(site for site, _ in fresh)
        told = sharding_of(fresh)
        if told:
            self.core.recorder.fact("shards", parameters=told)

    def _update_over(self, *_: Any) -> None:
        recorder = self.core.recorder
        recorder.scalar("sync_s", self._sync_ns / 1e9)
        recorder.scalar("backward_own_s", self._own_backward_ns / 1e9)
        self._sync_ns = self._own_backward_ns = 0
        self._tell_unsynced()
        self.shards.let_go()
        for told in self.overlap.told() if self.overlap.due(recorder.step) else ():
            recorder.fact("overlap", **told)
        for one in self._traffic.values():
            if one.calls:
                recorder.call(
                    Call.COLLECTIVE, one.site, value=float(one.size), aux=float(one.calls), duration_ns=one.waited_ns
                )
                one.calls = one.size = one.waited_ns = 0

    def _tell_unsynced(self) -> None:
        """Once: an update with gradients that no wrapper has put together."""
        if self._backwards and not self._averaged and not self._told_unsynced:
            self._told_unsynced = True
            self.core.recorder.fact("unsynced", update=self.core.recorder.step, backwards=self._backwards)
        self._backwards, self._averaged = 0, False


def _label(group: Any) -> str:
    label = "world" if group is None else str(attempt(lambda: group.group_desc or group.group_name) or "group")
    return "world" if label == "default_pg" else label


def size_of(given: dict[str, Any]) -> int:
    """Bytes of the largest argument, the tensors of a list together: what one rank has or gets of all of it."""
    return max((sum(each.numel() * each.element_size() for each in tensors(one)) for one in given.values()), default=0)


def _experimenting() -> bool:
    """Whether a model is being run again by us in this thread: nobody else would take part in a collective of that."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_EXPERIMENTS):
            return True
        frame = frame.f_back
    return False
