"""torch.compile: what happens inside of a compiled region, seen through taps in a second copy of its graph.

Every graph that Dynamo hands to a backend is compiled twice: as it is, and with taps behind the layers' outputs. Full
steps run the second, all others the first. The second is used only once it was seen to give the same bits as the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from neuraldbg.capture.guard import attempt_or_why
from neuraldbg.capture.torch.compiled_check import gives_the_same_bits
from neuraldbg.capture.torch.compiled_graphs import (
    Modules,
    backend_of,
    given_values,
    is_recompile,
    name_of,
    tokens_have_sources,
    uses_cuda_graphs,
    watch_cuda_graphs,
)
from neuraldbg.capture.torch.core import Core, now_ns
from neuraldbg.capture.torch.hooks import PassWatch
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.patches import Patches
from neuraldbg.capture.torch.taps import Observed, copy_with_taps, holds_half
from neuraldbg.capture.torch.tree import Layer
from neuraldbg.records import Kind, Phase

ONE_BY_ONE = ("eager", "aot_eager")  # backends that run the operations as they stand: taps cannot change a bit
CUDA_GRAPH = "a CUDA graph is replayed without Python: what runs inside of {} is not measured"
TOO_LATE = (
    "{} was compiled before it was watched, so its layers are not measured: attach first, or call "
    "torch._dynamo.reset() after attaching"
)
INEXACT = (
    "the layers inside of the compiled {} are not measured: with taps in it, this program rounds differently in the "
    "last bits, and results must not depend on being watched. TORCHDYNAMO_DISABLE=1 runs the layers eagerly"
)
CHECKPOINTED = (
    "the layers inside of the compiled {} are not measured where activation checkpointing, or another hook on saved "
    "tensors, stands around it: compile the whole instead"
)
COLLECTIVE = "the compiled {} talks to other ranks, which would have to join in a trial: its layers are not measured"
MISSING = "{} of {} values inside of the compiled {} were asked for and not seen: the backend left out their taps"
MOST_PASSES = 4096
COLLECTIVES = ("c10d", "all_reduce", "all_gather", "reduce_scatter")


@dataclass(eq=False)
class Region:
    """One graph of Dynamo's, compiled with and without taps."""

    name: str
    bare: Callable[..., Any]
    tapped: Callable[..., Any]
    observed: Observed
    values: tuple[int, ...]  # places among its inputs that are not a module's own
    root: Any  # weak reference to the module that a pass of it is a pass of
    exact: bool | None = None  # None = not seen yet
    checked: set[bool] = field(default_factory=set)  # whether the rows of values, of gradients, were found to be there


class CompiledWatch:
    def __init__(self, core: Core, passes: PassWatch, patches: Patches, *, inexact: bool = False) -> None:
        self.core = core
        self.passes = passes
        self.patches = patches
        self.inexact = inexact  # use taps also where they change last bits
        self.regions: list[Region] = []
        self.graphs = self.recompiles = self.rows = 0
        self.taps_ns = 0
        self._breaks_before = 0
        self._in_reach = False
        self._told: set[str] = set()
        self._ran: set[int] = set()  # ids of passes that ran a region
        shield = core.guard.shield
        self._observe = shield("values in compiled code")(self._observed)
        self._plan = shield("compiled code")(self._planned)
        self._verify = shield("compiled code")(self._verified)
        core.take_part("ending", "compiled code", self.write_totals)
        self._install()

    # -- finding compiled code --------------------------------------------------------------------------------------

    def _install(self) -> None:
        original = torch.compile

        @wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            self.passes.quick.short_way.close()  # in mid-pass
            if self.core.on:
                self._reach_dynamo()
            return original(*args, **kwargs)

        self.patches.replace(torch, "compile", compile)  # Module.compile and the decorator come through here too
        if "torch._dynamo.output_graph" in sys.modules:
            self._reach_dynamo()
        watch_cuda_graphs(self.core, self.patches, lambda: self._tell(CUDA_GRAPH.format("torch.cuda.graph")))

    def _reach_dynamo(self) -> None:
        if self._in_reach:
            return
        self._in_reach = True
        self.core.take_part("pass_ended", "compiled models", self._pass_ended)
        self.core.take_part("backward_done", "gradients in compiled code", self._backward_done)
        from torch._dynamo.output_graph import OutputGraph
        from torch._dynamo.utils import counters

        self._breaks_before = sum(counters["graph_break"].values())
        original = getattr(OutputGraph, "call_user_compiler", None)
        if original is None:
            self._tell("this torch compiles in a way we do not know: layers inside of compiled code are not measured")
            return

        @wraps(original)
        def call_user_compiler(graph: Any, traced: fx.GraphModule, *rest: Any) -> Any:
            if not self.core.on:
                return original(graph, traced, *rest)
            planned = self._plan(graph, traced)  # a backend may change the graph it is given
            bare = original(graph, traced, *rest)
            self.graphs += 1  # Dynamo may begin anew by raising
            self.recompiles += is_recompile()
            if planned is None:
                return bare
            return self._joined(planned, bare, lambda: original(graph, planned[0], *rest), graph)

        self.patches.replace(OutputGraph, "call_user_compiler", call_user_compiler)

    def _planned(self, graph: Any, traced: fx.GraphModule) -> tuple[fx.GraphModule, Observed, Any] | None:
        core = self.core
        if core.budget.share == 0.0:
            return None
        name = name_of(graph, traced)
        if uses_cuda_graphs(graph, traced):
            self._tell(CUDA_GRAPH.format(name))
            return None
        start = now_ns()
        alive = Modules(graph, traced)
        for module in alive.outermost[:1]:
            core.tree.find(module)  # its layers are named from it
        observed = Observed(lambda value, number, gradient: self._observe(observed, value, number, gradient))
        observed.careful = not self.inexact and backend_of(graph) not in ONE_BY_ONE and holds_half(traced)
        copied = copy_with_taps(traced, lambda key: self._layer(alive.get(key)), observed)
        if alive.lost:
            self._tell(f"{alive.lost} modules inside of the compiled {name} cannot be told apart and are not measured")
        self._describe(observed)
        self.passes.layers.fired |= observed.inside  # not called by .forward(): called inside of compiled code
        self._set_aside(now_ns() - start)
        return None if copied is None else (copied, observed, (name, alive.root))

    def _layer(self, module: nn.Module | None) -> Layer | None:
        return None if module is None else self.core.tree.find(module)

    def _describe(self, observed: Observed) -> None:
        recorder = self.core.recorder
        for tap in observed.taps:
            if not tap.layer.located and tap.shape is not None:
                tap.layer.located = True
                known = recorder.sites[tap.layer.site]
                line = None
                if tap.file_and_line is not None:
                    line = f"{recorder.frames.display(tap.file_and_line[0])}:{tap.file_and_line[1]}"
                seen = {"shape": tap.shape, "dtype": tap.dtype, "device": tap.device}
                recorder.refine_site(tap.layer.site, source=line or known.source, **seen)

    def _joined(self, planned: Any, bare: Any, compile_tapped: Callable[[], Any], graph: Any) -> Any:
        """What Dynamo is given to call: with taps or without, as the step wants it."""
        copied, observed, (name, root) = planned
        start = now_ns()
        with tokens_have_sources(graph):
            tapped, why = attempt_or_why(compile_tapped)
        self._set_aside(now_ns() - start)
        if why is not None:
            self._tell(f"the layers inside of the compiled {name} are not measured: {why.splitlines()[0]}")
            return bare
        region = Region(name, bare, tapped, observed, given_values(copied), root)
        collective = any(word in str(node.target) for node in copied.graph.nodes for word in COLLECTIVES)
        region.exact = True if backend_of(graph) in ONE_BY_ONE or self.inexact else (False if collective else None)
        if region.exact is False:
            self._tell(COLLECTIVE.format(name))
        self.regions.append(region)

        def run(*args: Any) -> Any:
            return self._run(region, args) if self.core.on else bare(*args)

        vars(run).update(getattr(bare, "__dict__", {}))
        return run

    def _set_aside(self, took_ns: int) -> None:
        self.taps_ns += took_ns
        self.core.own_ns += took_ns
        self.core.budget.set_aside(took_ns)

    # -- running it ---------------------------------------------------------------------------------------------------

    def _run(self, region: Region, args: tuple[Any, ...]) -> Any:
        core = self.core
        local = core.here.local
        if core.recomputing():
            return region.bare(*args)
        own = self._begin(region, args) if local.own_pass is None else None
        one = local.own_pass
        finished: Any = None
        try:
            wanted = self._wanted(region, one, args)
            finished = self._run_tapped(region, one, args) if wanted else region.bare(*args)
            return finished
        finally:
            if own is not None:
                local.own_pass = None
                values = tuple(args[place] for place in region.values)
                self.passes.end(own, (values, {}, finished) if finished is not None else (values, None), now_ns())

    def _begin(self, region: Region, args: tuple[Any, ...]) -> Pass | None:
        """A compiled function that calls a model: nobody has seen a pass begin. It is not kept for running again."""
        root, local = region.root(), self.core.here.local
        if root is None:
            return None
        keep, self.core.recording = self.core.recording, False
        values = tuple(args[place] for place in region.values)
        own: Pass | None = self.passes.begin(root, values, SimpleNamespace(f_locals={}), now_ns())
        self.core.recording = keep
        local.own_pass, local.pass_depth = own, len(local.stack)
        if own is not None and own is not self.passes.ignored:
            began, own.start_ns = own.start_ns, now_ns()
            own.own_before = self.core.own_ns = self.core.own_ns + own.start_ns - began
        return own

    def _wanted(self, region: Region, one: Pass | None, args: tuple[Any, ...]) -> bool:
        if one is None or not one.sampled:
            return False
        if len(self._ran) > MOST_PASSES:
            self._ran.clear()  # passes that broke off never end
        self._ran.add(one.id)
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            self._tell(CHECKPOINTED.format(region.name))
            return False  # the repeated forward must save what the first one did
        if region.exact is None:
            region.exact = self._verify(region, args) is True
            if not region.exact:
                self._tell(INEXACT.format(region.name))
        return region.exact

    def _verified(self, region: Region, args: tuple[Any, ...]) -> bool:
        start = now_ns()
        self.core.here.local.in_backward += 1  # nothing of this is the user's
        try:
            return gives_the_same_bits(region.bare, region.tapped, args)
        finally:
            self.core.here.local.in_backward -= 1
            self._set_aside(now_ns() - start)

    def _run_tapped(self, region: Region, one: Pass, args: tuple[Any, ...]) -> Any:
        region.observed.running = one
        try:
            outputs = region.tapped(*args)
        finally:
            region.observed.running = None

        def returning(_: Tensor | None) -> None:
            region.observed.returning = one

        for tensor in [t for t in tensors(outputs) if t.requires_grad][:8]:
            self.passes._hook(tensor, returning)  # runs right before the backward of this very call
        if False not in region.checked:
            self._check(region, gradient=False)
        return outputs

    def _observed(self, observed: Observed, value: Tensor, number: int, gradient: bool) -> None:
        core = self.core
        if not core.on:
            return
        observed.seen.add((number, gradient))
        one = observed.returning if gradient else observed.running
        kind = Kind.GRADIENT if gradient else Kind.ACTIVATION
        if one is None or not core.wants(kind):
            return
        start = now_ns()
        tap = observed.taps[number]
        phase = Phase.BACKWARD if gradient else one.phase
        self.passes.layers.stats(value, tap.layer.site, (kind, phase, tap.slot, one.id))
        self.rows += 1
        core.own_ns += now_ns() - start

    # -- saying what was not seen -------------------------------------------------------------------------------------

    def _check(self, region: Region, *, gradient: bool) -> None:
        taps = region.observed.taps
        expected = region.observed.traced_gradients if gradient else [n for n, tap in enumerate(taps) if tap.ways[0]]
        missing = [number for number in expected if (number, gradient) not in region.observed.seen]
        region.checked.add(gradient)
        if missing:
            self._tell(MISSING.format(len(missing), len(expected), region.name))

    def _backward_done(self, _: Tensor | None) -> None:
        for region in self.regions:
            if region.observed.returning is not None:
                region.observed.returning = None
                if True not in region.checked:
                    self._check(region, gradient=True)

    def _pass_ended(self, one: Pass, *_: Any) -> None:
        ran = one.id in self._ran
        self._ran.discard(one.id)
        if not one.sampled or ran or not one.compiled or one.model.name in self._told:
            return
        root = one.model.ref()
        if root is not None and any(id(module) in self.passes.layers.fired for module in root.children()):
            return  # it runs eagerly after all, or was told about
        self._told.add(one.model.name)
        self._tell(TOO_LATE.format(one.model.name))

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.core.recorder.note("warning", text)

    def write_totals(self) -> None:
        if not self._in_reach or not self.graphs:
            return
        from torch._dynamo.utils import counters

        self.core.recorder.fact(
            "compiled",
            graphs=self.graphs,
            recompiles=self.recompiles,
            graph_breaks=max(sum(counters["graph_break"].values()) - self._breaks_before, 0),
            values=sum(sum(tap.ways) for region in self.regions for tap in region.observed.taps),
            graphs_inside=sum(region.observed.unseen for region in self.regions),
            left_out=sum(region.observed.left_out for region in self.regions),
            measured_graphs=sum(region.exact is True for region in self.regions),
            rows=self.rows,
            taps_s=self.taps_ns / 1e9,
        )
        self.regions.clear()
