"""Where the way back from the loss to the parameters is cut: layers that ran and get no gradient, and the place after
them where a tensor without a graph goes on."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.evidence.graphs_trace import follow
from neuraldbg.capture.torch.members import own_parameters
from neuraldbg.capture.torch.nested import given_tensors, tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.stats import measurable
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.capture.torch.tree import Layer

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

MOST_ENTRIES = 1024  # layer calls of one step that are looked at
MOST_FACTS = 16
MOST_TRACED = 4  # passes that are run again to follow values
_HEAD = 64
_trained = attrgetter("requires_grad")
_MARKED = 64


@dataclass(slots=True)
class Ran:
    """One call of a layer, as flags and addresses."""

    layer: Layer
    pass_id: int
    grad_mode: bool
    floating_in: bool
    graph_in: bool  # an input has a graph
    graph_out: bool
    inputs: tuple[int, ...]
    shared: bool  # an input without a graph lies where an earlier layer put out a tensor with one
    parameters: list[weakref.ref[Tensor]]  # its own, trainable ones


@dataclass(eq=False)
class PassSeen:
    site: int
    grad_mode: bool
    graph_out: bool
    floating_out: bool


@dataclass(eq=False)
class Window:
    """The layer calls since the last update."""

    ran: list[Ran] = field(default_factory=list)
    passes: list[PassSeen] = field(default_factory=list)
    put_out: dict[int, tuple[bool, Any]] = field(default_factory=dict)  # address -> had a graph, weak storage
    raw: set[int] = field(default_factory=set)
    settled: bool = False  # layers that ran are left out
    trainable: bool = False  # and some of them have parameters

    def had_graph(self, address: int) -> bool:
        """Whether an earlier layer put a tensor with a graph there, in memory that has not been freed since."""
        known = self.put_out.get(address)
        return known is not None and known[0] and not known[1].expired()


class GraphCuts:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._passes = capture.passes
        self._window = Window()
        self._own: IdentityTable[list[weakref.ref[Tensor]]] = IdentityTable()  # layer -> trainable parameters
        self._reached: IdentityTable[bool] = IdentityTable()
        self._settled: IdentityTable[bool] = IdentityTable()  # layer -> has parameters, all of which were reached
        self._wary = False  # something was lost beside layers that were left out: all are looked at from then on
        self._first: IdentityTable[Tensor] = IdentityTable()
        self._written: set[Any] = set()
        self._unreached: IdentityTable[bool] = IdentityTable()
        self._excused: list[tuple[list[int], list[int]]] = [([], [])]
        self._facts = 0
        self._cuts = 0
        self._backwards: Counter[tuple[int, int]] = Counter()  # line, training -> those whose pass was looked at
        self._traced = 0
        core = self.core
        core.take_part("layer_run", "graphs of layers", self._layer)
        core.take_part("pass_begun", "graphs of inputs", self._pass_begun, rarely=True)
        core.take_part("pass_ended", "graphs of outputs", self._pass_ended, rarely=True)
        core.take_part("backward_begun", "graph of the loss", self._backward, rarely=True)
        core.take_part("update_begun", "parameters without gradients", self._update, rarely=True)
        core.take_part("update_done", "end of a window", self._done, rarely=True)
        core.take_part("ending", "parameters never reached", self._note_excuses)

    # -- forward -----------------------------------------------------------------------------------------------------

    def _pass_begun(self, one: Pass, _: Any, args: Any, kwargs: Any) -> None:
        if not one.looked:
            return
        window = self._window
        for tensor in _floating((args, kwargs)):
            address = _place(tensor)[1]
            if address and not window.had_graph(address):
                window.raw.add(address)

    def _layer(self, module: nn.Module, layer: Layer, one: Pass, values: Any) -> None:
        window = self._window
        settled = self._settled.get(layer)
        if settled is not None:
            window.settled, window.trainable = True, window.trainable or settled
            return
        if len(window.ran) >= MOST_ENTRIES:
            return
        parameters = self._parameters(layer, module)
        outputs = _floating(values[2])
        if layer.leaf or parameters:
            inputs = _floating(given_tensors(values[0], values[1]))
            came = tuple([address for tensor in inputs if (address := _place(tensor)[1])])
            fed = any(map(_trained, inputs))
            shared = not fed and any(map(window.had_graph, came))
            given = any(map(_trained, outputs))
            window.ran.append(
                Ran(layer, one.id, torch.is_grad_enabled(), bool(inputs), fed, given, came, shared, parameters)
            )
        for tensor in outputs:
            (storage, address), trained = _place(tensor), tensor.requires_grad
            if address and (trained or not window.had_graph(address)):
                window.put_out[address] = (trained, StorageWeakRef(storage))  # type: ignore[no-untyped-call]

    def _parameters(self, layer: Layer, module: nn.Module) -> list[weakref.ref[Tensor]]:
        known = self._own.get(layer)
        if known is None:
            known = self._own[layer] = list(map(weakref.ref, own_parameters(module)))
        return [ref for ref in known if (parameter := ref()) is not None and parameter.requires_grad]

    def _pass_ended(self, one: Pass, _: Any, __: Any, outputs: Any) -> None:
        window = self._window
        if not one.looked or len(window.passes) >= 256:
            return
        out = _floating(outputs)
        given = any(tensor.requires_grad for tensor in out)
        window.passes.append(PassSeen(one.model.site, one.grad, given, bool(out)))

    # -- backward ----------------------------------------------------------------------------------------------------

    def _backward(self, loss: Tensor | None, source: int) -> None:
        """A loss that is a leaf: nothing it was computed from can be reached."""
        passes = self._window.passes
        training = self.core.budget.began
        self._backwards[source, training] += bool(passes)
        if loss is None or loss.grad_fn is not None or self._cuts >= 8:
            return
        if isinstance(loss, nn.Parameter) or not (passes or self.core.recorder.step == 0):
            return
        self._cuts += 1
        trainable_ran = self._window.trainable or any(one.parameters for one in self._window.ran)
        self.core.recorder.fact(
            "loss_cut",
            source_id=source,
            requires_grad=bool(loss.requires_grad),
            elements=loss.numel(),
            training=training,
            looked=self._backwards[source, training],
            passes=len(passes),
            passes_without_grad_mode=sum(not one.grad_mode for one in passes),
            passes_with_graph=sum(one.graph_out for one in passes),
            trainable_layers_ran=trainable_ran,
            grad_mode=torch.is_grad_enabled(),
        )

    # -- updates -----------------------------------------------------------------------------------------------------

    def _update(self, optimizer: Optimizer, known: Any) -> None:
        window = self._window
        if not self.core.looking or not (window.ran or window.settled):
            return
        if len(self._unreached) and (known.updates & (known.updates - 1)) == 0 and len(self._excused) < MOST_FACTS:
            self._note_excuses()
        if self._facts >= MOST_FACTS or not window.ran:
            return
        mine = {id(parameter) for parameter in owned(optimizer)}
        for parameter in owned(optimizer):
            if parameter.grad is not None and parameter not in self._reached:
                self._reached[parameter] = True
        lost = [ran for ran in window.ran if self._is_lost(ran, mine)]
        if not lost:
            self._settle(window)
            return
        if window.settled:
            self._wary, self._settled = True, IdentityTable()  # where it is cut only all of them can tell: next time
            return
        for ran in lost:
            self._mark(ran)
        signature = (known.site, tuple(dict.fromkeys(ran.layer.site for ran in lost)))
        if signature not in self._written:
            self._written.add(signature)
            self._facts += 1
            self._write(known.site, lost)

    def _is_lost(self, ran: Ran, mine: set[int]) -> bool:
        """Trainable, owned by this optimizer, ran in this step, and no gradient ever came."""
        own = [parameter for ref in ran.parameters if (parameter := ref()) is not None and id(parameter) in mine]
        return bool(own) and not any(map(self._reached.__contains__, own))

    def _settle(self, window: Window) -> None:
        """Layers that a gradient has reached can never be lost, and where none is lost nobody asks about the others."""
        if self._wary:
            return
        for layer in {id(ran.layer): ran.layer for ran in window.ran}.values():
            own = [ref() for ref in self._own[layer]]
            if all(map(self._reached.__contains__, own)):
                self._settled[layer] = bool(own)

    def _mark(self, ran: Ran) -> None:
        for ref in ran.parameters:
            parameter = ref()
            if parameter is None or parameter in self._first or len(self._first) >= _MARKED:
                continue
            self._unreached[parameter] = True
            if not parameter.is_cuda and measurable(parameter) and parameter.layout == torch.strided:
                with torch.no_grad():
                    self._first[parameter] = parameter.detach().reshape(-1)[:_HEAD].clone()

    def _write(self, optimizer: int, lost: list[Ran]) -> None:
        ran = self._window.ran
        sites = list(dict.fromkeys(one.layer.site for one in lost))
        with_mode = {one.layer.site for one in ran if one.grad_mode and one.layer.site in set(sites)}
        before, after, shared, whole = self._cut(lost, with_mode)
        last_pass = next((one for one in reversed(self._window.passes) if one.floating_out), None)
        followed = self._followed([one for one in lost if one.layer.site in with_mode])
        self.core.recorder.fact(
            "unreached",
            optimizer=optimizer,
            layers=sites[:64],
            count=len(sites),
            without_grad_mode=[site for site in sites if site not in with_mode][:64],
            before=before,
            after=after,
            shares_memory=shared,
            all_before=whole,
            model_output_without_graph=last_pass is not None and not last_pass.graph_out,
            elements=sum(p.numel() for one in lost for ref in one.parameters if (p := ref()) is not None),
            **followed,
        )

    def _followed(self, lost: list[Ran]) -> dict[str, Any]:
        """What became of the outputs of these layers, by running their passes once more."""
        parameters = [p for one in lost for ref in one.parameters if (p := ref()) is not None]
        wanted = {one.pass_id for one in lost}
        if self._traced >= MOST_TRACED:
            return {}
        for one in [one for one in self._passes.current.copy() if one.id in wanted and one.record is not None][:2]:
            self._traced += 1
            found = attempt(partial(follow, self.core, one, parameters))
            if found is not None and found.outputs:
                cuts = [[cut.op, cut.source, cut.discrete] for cut in found.cuts[:8]]
                return {"outputs_that_depend": found.outputs, "with_graph": found.with_graph, "cuts": cuts}
        return {}

    def _cut(self, lost: list[Ran], with_mode: set[int]) -> tuple[int | None, int | None, bool, bool]:
        """The last layer before the cut and the first one after it: the latter takes a tensor without a graph that is
        no input of the model. Then whether that tensor shares memory with what an earlier layer put out, and whether no
        trainable layer before it gets gradients."""
        window = self._window
        last = max((index for index, one in enumerate(window.ran) if one in lost), default=-1)
        known = [one for one in lost if one.layer.site in with_mode]
        latest = (known or lost)[-1]
        for index, one in enumerate(window.ran[last + 1 :], last + 1):
            if not one.floating_in or one.graph_in or not one.grad_mode:
                continue
            if one.shared or not (set(one.inputs) & window.raw):
                whole = all(other in lost for other in window.ran[:index] if other.parameters)
                return latest.layer.site, one.layer.site, one.shared, whole
        return latest.layer.site, None, False, False

    def _done(self, *_: Any) -> None:
        window = self._window
        if window.ran or window.passes or window.raw or window.settled:
            self._window = Window()

    def _note_excuses(self) -> None:
        """Which of them have been moved after all, by hand or by averaging, or got a gradient later."""
        if not len(self._unreached):
            return
        moved = [p for p, first in self._first.items() if not _same(p, first)]
        reached = [p for p, _ in self._unreached.items() if p in self._reached or p.grad is not None]
        sites = self.core.tree.parameter_site
        excused = (
            sorted(site for p in moved if (site := sites.get(p)) is not None),
            sorted(site for p in reached if (site := sites.get(p)) is not None),
        )
        if excused not in self._excused:
            self._excused.append(excused)
            self.core.recorder.fact("unreached_excused", moved=excused[0], reached=excused[1])


@torch.no_grad()
def _same(parameter: Tensor, first: Tensor) -> bool:
    now = parameter.detach().reshape(-1)[:_HEAD]
    if now.shape != first.shape or now.device != first.device:
        return False
    return bool(torch.equal(torch.nan_to_num(now.float()), torch.nan_to_num(first.float())))


def _floating(values: Any) -> list[Tensor]:
    if type(values) is tuple and len(values) == 1:
        values = values[0]
    if isinstance(values, Tensor):
        return [values] if values.is_floating_point() or values.is_complex() else []
    return [tensor for tensor in tensors(values) if tensor.is_floating_point() or tensor.is_complex()][:16]


def _place(tensor: Tensor) -> tuple[Any, int]:
    """Its storage, and where that begins: what detach(), .data, .numpy() and views share. 0 where there is none."""
    if tensor.layout is torch.strided and measurable(tensor) and tensor.numel():
        try:
            storage = tensor.untyped_storage()
            return storage, storage.data_ptr()
        except RuntimeError:  # it has none
            pass
    return None, 0
