"""A profiled run: the times of layers, forward and backward, and of the phases around them, and nothing else.

It hears of layers from the hooks of every run (`PassWatch`) in the place of `LayerWatch`. Backwards are timed at the
nodes of the graph where the outputs of layers enter them and their inputs leave: what lies between two layers is
charged to the module whose code it is, or to none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from neuraldbg.capture.resources import device_total_bytes, machine
from neuraldbg.capture.torch.clock import Clock, Point
from neuraldbg.capture.torch.core import now_ns
from neuraldbg.capture.torch.flops import flops_of
from neuraldbg.capture.torch.memory import LayerMemory
from neuraldbg.capture.torch.out_of_memory import OutOfMemoryNotes
from neuraldbg.capture.torch.passes import Pass, tensors
from neuraldbg.capture.torch.stats import measurable
from neuraldbg.capture.torch.tree import Layer
from neuraldbg.records import Phase

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

CELL: Final = "neuraldbg_time"  # in the metadata of a graph's node
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
        core.clock, core.statistics = self, False
        self._layers_in_pass = 0
        self._machine_told = False
        self._running: tuple[Layer | None, Pass | None, Point] | None = None  # what a backward is at, and since when
        shield = core.guard.shield
        capture.passes.layer_seen = shield("layers", lambda module, *_: type(module).__name__)(self.seen)
        capture.passes.begin = self._criteria_noticed(capture.passes.begin)
        self._arrived = shield("times of backwards")(self._comes_to)
        core.take_part("pass_begun", "times of passes", self._pass_begun)
        self.memory: LayerMemory | None = None
        if capture.options.memory:
            self.memory = LayerMemory(capture)
            self._oom = OutOfMemoryNotes(capture, self.memory)
        capture.updates.on_update.append(shield("times of steps")(self.step_done))

    # -- passes ------------------------------------------------------------------------------------------------------

    def _criteria_noticed(self, begin: Any) -> Any:
        def began(module: nn.Module, args: Any, frame: Any) -> Any:
            one = begin(module, args, frame)
            if one is None and isinstance(module, _Loss):
                self.loss_began(now_ns())
            return one

        return began

    def _pass_begun(self, one: Pass, root: nn.Module | None, *_: Any) -> None:
        if not one.sampled:
            return
        self._layers_in_pass = 0
        if root is not None and not self.on_device:
            self.on_device = any(parameter.is_cuda for parameter in root.parameters())
        if not self._machine_told:
            self._machine_told = True
            self.core.recorder.fact("machine", **machine(), device_bytes=device_total_bytes())
        self.pass_began(one.start_ns)

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
        around = self.core.tree.find(self.core.local.stack[-1][0])
        return around if around is not None and around.path and not around.wrapper else None

    def _layer(self, layer: Layer, module: nn.Module, one: Pass, call: tuple[Any, Any, int]) -> None:
        (start, duration, marks), values, depth = call
        recorder = self.core.recorder
        outputs = list(tensors(values[2]))
        sizes = [(t.device.type == "cpu", t.numel() * t.element_size()) for t in outputs if measurable(t)]
        host, device = (sum(size for on_host, size in sizes if on_host is wanted) for wanted in (True, False))
        size = {"depth": depth, "host_bytes": host, "device_bytes": device}
        if not layer.located:
            self._locate(layer, module, outputs, next(tensors(values[0]), None))
        if marks is None or not device:
            recorder.span(layer.site, one.phase, (start, duration), pass_id=one.id, **size)
            return
        step = recorder.step
        self.core.device.elapsed(
            *marks, lambda ns: recorder.span(layer.site, one.phase, (start, ns), pass_id=one.id, step=step, **size)
        )

    def _locate(self, layer: Layer, module: nn.Module, outputs: list[Tensor], entered: Tensor | None) -> None:
        layer.located = True
        first = next((tensor for tensor in outputs if measurable(tensor)), None)
        if first is not None:
            recorder = self.core.recorder
            recorder.refine_site(
                layer.site,
                shape=tuple(first.shape),
                dtype=str(first.dtype).removeprefix("torch."),
                device=str(first.device),
                source=recorder.frames.line(5) or recorder.sites[layer.site].source,
                flops=flops_of(module, entered, first),
            )

    # -- backwards ---------------------------------------------------------------------------------------------------

    def _follow(self, layer: Layer, caller: Layer | None, one: Pass, values: Any) -> None:
        """Marks where a backward will enter this layer and where it will leave it."""
        own_nodes = set()
        for node in _nodes(values[2]):
            own_nodes.add(node)
            if CELL not in node.metadata:
                self._follow_node(node, Cell(layer, one, begins=True))
        for node in _nodes((values[0], values[1])):
            cell = node.metadata.get(CELL)
            if node in own_nodes:
                continue  # changed in place: what went in is what came out
            if cell is None:
                self._follow_node(node, Cell(caller, one, begins=False))
            elif not cell.begins:
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
        recorder, step = self.core.recorder, self.core.recorder.step
        number = -1 if one is None else one.id
        if since[2] is None or until[2] is None:
            lasted = max(until[0] - since[0] - (until[1] - since[1]), 0)
            recorder.span(layer.site, Phase.BACKWARD, (since[0], lasted), pass_id=number)
        else:
            self.core.device.elapsed(
                since[2],
                until[2],
                lambda ns: recorder.span(layer.site, Phase.BACKWARD, (since[0], ns), pass_id=number, step=step),
            )


def _nodes(value: Any) -> list[Any]:
    found = []
    for tensor in tensors(value):
        if tensor.grad_fn is not None:
            found.append(tensor.grad_fn)
        if len(found) == HOOKED_TENSORS:
            break
    return found
