"""A profiled run: the times of layers, forward and backward, and of the phases around them, and nothing else.

It hears of layers from the hooks of every run (`PassWatch`) in the place of `LayerWatch`. Backwards are timed at the
nodes of the graph where the outputs of layers enter them and their inputs leave: what lies between two layers is
charged to the module whose code it is, or to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn, strided
from torch.nn.modules.loss import _Loss

from neuraldbg.capture.resources import device_total_bytes, machine
from neuraldbg.capture.torch.clock import Clock, Point
from neuraldbg.capture.torch.core import now_ns
from neuraldbg.capture.torch.flops import flops_of
from neuraldbg.capture.torch.launches import Launches
from neuraldbg.capture.torch.memory import LayerMemory
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.out_of_memory import OutOfMemoryNotes
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.stats import measurable
from neuraldbg.capture.torch.tree import Layer
from neuraldbg.records import Phase
from neuraldbg.trace.tables import PHASE_CODE

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

CELL: Final = "neuraldbg_time"  # in the metadata of a graph's node
_CODE: Final = dict(PHASE_CODE)
_BACKWARD: Final = PHASE_CODE[Phase.BACKWARD]
HOOKED_TENSORS: Final = 8  # outputs and inputs of one layer whose nodes are followed


class Cell:
    """What a backward goes on with when it comes to a node: a layer, or the module around the one that ends here."""

    __slots__ = ("begins", "layer", "one")

    def __init__(self, layer: Layer | None, one: Pass, *, begins: bool) -> None:
        self.layer = layer
        self.one = one
        self.begins = begins


class Timing(Clock):
    """The clock of a profiled run, which hears of its layers as well."""

    def __init__(self, capture: TorchCapture) -> None:
        super().__init__(capture.core, lambda: capture.updates.step_started)
        core = capture.core
        core.clock, core.statistics, core.looking, core.closely = self, False, False, False
        self._layers_in_pass = 0
        self._met: set[int] = set()  # models
        self._running: tuple[Layer | None, Pass | None, Point] | None = None  # what a backward is at, and since when
        shield = core.guard.shield
        capture.passes.layer_seen = shield("layers", lambda module, *_: type(module).__name__)(self.seen)
        capture.passes.begin = self._criteria_noticed(capture.passes.begin)
        self._arrived = core.guard.inside("times of backwards")(self._comes_to)  # touches no tensor
        core.take_part("pass_begun", "times of passes", self._pass_begun)
        self.launches = Launches(core)
        self.memory: LayerMemory | None = None
        if capture.options.memory:
            self.memory = LayerMemory(capture)
            self._oom = OutOfMemoryNotes(capture, self.memory)
        capture.updates.on_update.append(shield("times of steps")(self.step_done))

    # -- passes ------------------------------------------------------------------------------------------------------

    def _criteria_noticed(self, begin: Any) -> Any:
        def began(module: nn.Module, *given: Any) -> Any:
            one = begin(module, *given)
            if one is None and isinstance(module, _Loss):
                self.loss_began(now_ns())
            return one

        return began

    def _pass_begun(self, one: Pass, root: nn.Module | None, *_: Any) -> None:
        if not one.sampled:
            return
        self._layers_in_pass = 0
        if one.model.site not in self._met:
            self._meet(one.model.site, root)
        self.pass_began(one.start_ns)

    def _meet(self, site: int, root: nn.Module | None) -> None:
        """A model's first pass: where it is, and once on which machine."""
        if not self._met:
            self.core.recorder.fact("machine", **machine(), device_bytes=device_total_bytes())
        self._met.add(site)
        if root is not None and any(parameter.is_cuda for parameter in root.parameters()):
            self.on_device = True

    def seen(self, module: nn.Module, one: Pass, times: tuple[int, int, Any], values: Any, depth: int) -> None:
        """`times` = start and duration on the host, and two marks; `values` = args, kwargs, output."""
        core, now = self.core, now_ns()
        layer = core.tree.find(module)
        if layer is None:
            return
        is_layer = bool(layer.path) and not layer.wrapper
        if self.memory is not None:
            self.memory.layer_ran(layer, values, inside=is_layer)
        caller = self._caller(depth)
        if is_layer:
            self._layer(layer, module, one, (times, values, depth))
            if one.grad:
                self._follow(layer, caller, one, values)
        if one.grad and is_layer and caller is None:
            self._layers_in_pass += 1
            self.layer_ran(*self._ends(times, now))
        if depth == 0:
            phase = "eval" if not one.grad else "outside" if self._layers_in_pass else "forward"
            self.pass_ended(self._ends(times, now)[1], phase)
        core.own_ns += now_ns() - now

    def _ends(self, times: tuple[int, int, Any], now: int) -> tuple[Point, Point]:
        """Begin and end of a call, each with our own time until then."""
        start, duration, marks = times
        own = self.core.own_ns
        begin_mark, end_mark = marks or (None, None)
        return (start, own - max(now - start - duration, 0), begin_mark), (now, own, end_mark)

    def _caller(self, depth: int) -> Layer | None:
        """The layer whose code called this one; None where that is the model itself, or nobody."""
        if depth == 0:
            return None
        around = self.core.tree.find(self.core.here.local.stack[-1][0])
        return around if around is not None and around.path and not around.wrapper else None

    def _layer(self, layer: Layer, module: nn.Module, one: Pass, call: tuple[Any, Any, int]) -> None:
        (start, duration, marks), values, depth = call
        outputs = _flat(values[2])
        host = device = 0
        for tensor in outputs:
            if (type(tensor) is Tensor and tensor.layout == strided) or measurable(tensor):
                size = tensor.numel() * tensor.element_size()
                host, device = (host + size, device) if tensor.device.type == "cpu" else (host, device + size)
        if not layer.located:
            self._locate(layer, module, outputs, next(tensors(values[0]), None))
        row = (layer.site, one.id, _CODE[one.phase], min(depth, 255))
        if marks is None or not device:
            self._row(self.core.recorder.step, row, (start, duration, host, device))
            return
        step = self.core.recorder.step

        def took(ns: int) -> None:
            self._row(step, row, (start, ns, host, device))

        if one.phase is Phase.FORWARD:
            self.launches.called(layer.site, marks, took)
        else:
            self.core.device.elapsed(*marks, took)

    def _row(self, step: int, where: tuple[int, int, int, int], measured: tuple[int, int, int, int]) -> None:
        """`where` = site, pass, phase, depth; `measured` = start, duration, bytes on host and device (-1: unknown)."""
        recorder = self.core.recorder
        recorder.staging.spans((step, recorder.next_seq(), *where, *measured))

    def _locate(self, layer: Layer, module: nn.Module, outputs: Sequence[Tensor], entered: Tensor | None) -> None:
        layer.located = True
        first = next((tensor for tensor in outputs if measurable(tensor)), None)
        if first is not None:
            recorder = self.core.recorder
            recorder.refine_site(
                layer.site,
                shape=tuple(first.shape),
                input_shape=None if entered is None else tuple(entered.shape),
                dtype=str(first.dtype).removeprefix("torch."),
                device=str(first.device),
                source=recorder.frames.line(5) or recorder.sites[layer.site].source,
                flops=flops_of(module, entered, first),
            )

    # -- backwards ---------------------------------------------------------------------------------------------------

    def _follow(self, layer: Layer, caller: Layer | None, one: Pass, values: Any) -> None:
        """Marks where a backward will enter this layer and where it will leave it."""
        own_nodes = _nodes(values[2])
        for node in own_nodes:
            if CELL not in node.metadata:
                self._follow_node(node, Cell(layer, one, begins=True))
        for node in _nodes(values[0]) if not values[1] else _nodes((values[0], values[1])):
            cell = node.metadata.get(CELL)
            if (cell is not None and cell.begins) or node in own_nodes:
                continue  # another layer begins there; or changed in place: what went in is what came out
            if cell is None:
                self._follow_node(node, Cell(caller, one, begins=False))
            else:
                cell.layer = caller  # the module around it begins with the same values

    def _follow_node(self, node: Any, cell: Cell) -> None:
        node.metadata[CELL] = cell
        core, arrived = self.core, self._arrived

        def comes(_: Any) -> None:
            if core.on and core.any_backward:
                arrived(cell)

        node.register_prehook(comes)

    def backward_began(self, now_ns: int) -> None:
        self._running = None
        super().backward_began(now_ns)

    def backward_ended(self, now_ns: int) -> None:
        if self.core.sampling:
            self._charge((now_ns, self.core.own_ns, self._mark_now()))
        self._running, self._idle = None, "outside"

    def _comes_to(self, cell: Cell) -> None:
        core, now = self.core, now_ns()
        if core.sampling:
            point = (now, core.own_ns, self._mark_now())
            self._charge(point)
            self._running = (cell.layer, cell.one, point)
            if self.memory is not None:
                self.memory.in_backward(cell.layer)
        core.own_ns += now_ns() - now

    def _charge(self, until: Point) -> None:
        """The time since the last node belongs to what the backward was at: at first that is the loss."""
        running = self._running
        if running is None:
            self._until("backward", until)
            return
        layer, one, since = running
        if layer is None:
            self._until("outside", until)
            return
        self._until("backward", until)
        row = (layer.site, -1 if one is None else one.id, _BACKWARD, 0)
        step = self.core.recorder.step
        if since[2] is None or until[2] is None:
            lasted = max(until[0] - since[0] - (until[1] - since[1]), 0)
            self._row(step, row, (since[0], lasted, -1, -1))
        else:
            start = since[0]
            self.core.device.elapsed(since[2], until[2], lambda ns: self._row(step, row, (start, ns, -1, -1)))


def _flat(value: Any) -> Sequence[Tensor]:
    """Its tensors, the usual cases first: one, or a tuple of them."""
    if type(value) is Tensor:
        return (value,)
    if type(value) is tuple and len(value) == 1 and type(value[0]) is Tensor:
        return value
    return tuple(tensors(value))


def _nodes(value: Any) -> list[Any]:
    return [tensor.grad_fn for tensor in _flat(value)[:HOOKED_TENSORS] if tensor.grad_fn is not None]
