"""One layer of a pass: its statistics, its times forward and backward, and the gradient of its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.core import Core, now_ns
from neuraldbg.capture.torch.flops import flops_of
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.stats import device_name, dtype_name, measurable
from neuraldbg.capture.torch.tree import Layer
from neuraldbg.records import Kind, Phase
from neuraldbg.trace.tables import KIND_CODE, PHASE_CODE

Times = tuple[int, int, Any]  # start and duration on the host, and two marks on the device's clock
_default_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_Notices = list[Callable[..., None]]
_OfKind = tuple[_Notices, _Notices]  # of any layer, of one that C has seen
UNTIMED = True  # in place of a mark: the device has a clock, and it is not read
Arrival = tuple[Layer, int, Pass, Any]  # whose output gradient arrived, when less the time held, and the mark then


class LayerWatch:
    def __init__(self, core: Core, hook: Callable[[Any, Callable[[Tensor | None], None]], None], quick: Any) -> None:
        self.core = core
        self.quick = quick
        self._hook = hook
        self.last_backward: list[Arrival | None] = [None]
        self._gradient_arrived = core.guard.shield("gradients")(self._gradient)
        self._only: dict[Callable[..., None], Callable[[type], bool]] = {}
        self._done_by_c: _Notices = []
        self._told_of: IdentityTable[_OfKind] = IdentityTable()  # kind of layer -> who of `_told` is told of it
        self._told: tuple[_Notices, int] = ([], 0)
        self.fired: set[int] = set()  # ids of modules whose hooks have fired; tells which ones are called by .forward()

    def seen(self, module: nn.Module, one: Pass, times: Times, values: Any, depth: int) -> None:
        """`values` = args, kwargs, output."""
        core = self.core
        begin = now_ns()
        layer = core.tree.find(module)
        if layer is None or layer.wrapper:
            return
        phase = one.phase
        outputs = list(tensors(values[2]))
        host = device = 0
        for tensor in outputs:
            if measurable(tensor):
                size = tensor.numel() * tensor.element_size()
                host, device = (host + size, device) if tensor.is_cpu else (host, device + size)
        if layer.path:  # the root's own span is that of the pass
            taken = {"depth": depth, "host_bytes": host, "device_bytes": device}
            self._span(layer, phase, times, one, taken)
        if not layer.located:
            self._locate(layer, module, outputs, _given_first(values[0]))
        self._notice(module, one, values)
        if layer.watched:
            for slot, tensor in enumerate(outputs[:8]):
                if core.wants(Kind.ACTIVATION):
                    self.stats(tensor, layer.site, (Kind.ACTIVATION, phase, slot, one.id))
                if tensor.requires_grad and one.grad and core.wants(Kind.GRADIENT):
                    self._watch_gradient(tensor, layer, slot, one)
        for observe in core.on_layer:
            observe(layer, one, values)
        if one.looked:
            self._tell(module, layer, one, values)
        core.own_ns += now_ns() - begin

    def look(self, module: nn.Module, layer: Layer, one: Pass, values: Any) -> None:
        """All but its statistics and times, which C took."""
        if not layer.located:
            self._locate(layer, module, [values[2]], _given_first(values[0]))  # to C, it is a plain tensor
        self._notice(module, one, values)
        if one.looked:
            self._tell(module, layer, one, values, by_c=True)

    def _notice(self, module: nn.Module, one: Pass, values: Any) -> None:
        if self.core.recorder.step <= 20:
            self.fired.add(id(module))
        if one.grad and _default_hooks(True) is not None:
            self.mark_packed(list(tensors(values[2])))

    def tell_only(self, notice: Callable[..., None], concerns: Callable[[type], bool]) -> None:
        """This one who takes part in `layer_run` is told of layers of such classes and of no others."""
        self._only[notice] = concerns

    def done_by_c(self, notice: Callable[..., None]) -> None:
        """This one is told of no layer that C has seen: C did its work."""
        self._done_by_c.append(notice)

    def _tell(self, module: nn.Module, layer: Layer, one: Pass, values: Any, *, by_c: bool = False) -> None:
        core, kind = self.core, type(module)
        every = core.moments.layer_run
        if every is not self._told[0] or len(every) != self._told[1]:
            self._told, self._told_of = (every, len(every)), IdentityTable()
        told = self._told_of.get(kind)
        if told is None:
            concerned = [(notice, self._only.get(notice)) for notice in every]
            of_any = [notice for notice, its in concerned if its is None or its(kind)]
            told = self._told_of[kind] = (of_any, [notice for notice in of_any if notice not in self._done_by_c])
        core.tell(told[by_c], module, layer, one, values)

    def set_aside(self, took_ns: int) -> None:
        """Spent by us since the last gradient arrived: no layer's. Where several threads train it may be another's."""
        if self.core.trainers > 1:
            return
        last = self.last_backward[0]
        if last is not None:
            self.last_backward[0] = (last[0], last[1] + took_ns, *last[2:])
        if self.quick.one is not None:
            self.quick.c.set_aside(took_ns)

    def mark_packed(self, outputs: list[Tensor]) -> None:
        """Inside activation checkpointing and its like, and of a compiled model, whose layers nobody sees: to read what
        such a node saved may run the forward again."""
        self.core.packed = True
        for tensor in outputs:
            node: Any = tensor.grad_fn
            if node is not None:
                node.metadata["neuraldbg_packed"] = True

    def _span(self, layer: Layer, phase: Phase, times: Times, one: Pass, size: dict[str, int]) -> None:
        """What the layer took: on the host by its clock, on the device by the device's. A container on the device has
        no time of its own: our measuring of its layers runs in between."""
        recorder = self.core.recorder
        start, duration, marks = times
        if marks is None or not size["device_bytes"]:
            recorder.span(layer.site, phase, (start, duration), pass_id=one.id, **size)
        elif layer.leaf and marks[0] is not UNTIMED:
            step = recorder.step

            def deliver(nanoseconds: int) -> None:
                recorder.span(layer.site, phase, (start, nanoseconds), pass_id=one.id, step=step, **size)

            self.core.device.elapsed(marks[0], marks[1], deliver)

    def stats(self, tensor: Tensor, site: int, where: tuple[Kind, Phase, int, int]) -> None:
        core, recorder = self.core, self.core.recorder
        size = tensor.numel() * tensor.element_size() if _sized(tensor) else 0
        if size > core.largest:
            return
        core.read_bytes += size
        step = recorder.step
        if tensor.is_cuda:
            kind, phase, slot, pass_id = where
            core.measure(tensor, site, (step, site, pass_id, KIND_CODE[kind], PHASE_CODE[phase], slot))
        else:
            core.measure(tensor, site, lambda measured: recorder.stats(site, where, measured, step=step))

    def _watch_gradient(self, tensor: Tensor, layer: Layer, slot: int, one: Pass) -> None:
        core, observe = self.core, self._gradient_arrived

        def arrived(gradient: Tensor | None) -> None:  # cuDNN's RNN hands None for a state nobody used
            if core.on and gradient is not None:
                observe(gradient, layer, slot, one)

        self._hook(tensor, arrived)

    def _gradient(self, gradient: Tensor, layer: Layer, slot: int, one: Pass) -> None:
        core = self.core
        begin = now_ns()
        if one.by_c:
            self._beside_quick(gradient, layer, slot, one, begin)
            return
        last = self.last_backward[0]
        if layer.leaf:  # the output of a container is that of its last layer, whose time this is
            mark = self._mark(gradient)
            if last is not None:
                self._charge_backward(last, begin, mark)
        self.stats(gradient, layer.site, (Kind.GRADIENT, Phase.BACKWARD, slot, one.id))
        for notice in core.on_gradient:
            notice(layer, slot, one, gradient)
        end = now_ns()
        core.own_ns += end - begin
        if layer.leaf:
            mark = self._mark(gradient)
            self.last_backward[0] = (layer, end - core.held_ns, one, mark)
        else:
            self.set_aside(end - begin)

    def _mark(self, gradient: Tensor) -> Any:
        """None of what the host's clock tells."""
        device = self.core.device
        if not gradient.is_cuda:
            return None
        return device.mark() if self.core.timing else device.ticks or None

    def _beside_quick(self, gradient: Tensor, layer: Layer, slot: int, one: Pass, begin: int) -> None:
        """One of a pass whose other layers C sees, which keeps their times."""
        self.stats(gradient, layer.site, (Kind.GRADIENT, Phase.BACKWARD, slot, one.id))
        if layer.leaf and self.quick.one is not None:  # else C rests, and times nothing
            self.quick.c.arrived(layer.site, one.id, begin)
        else:
            self.set_aside(now_ns() - begin)
        self.core.own_ns += now_ns() - begin

    def _charge_backward(self, last: Arrival, now: int, mark: Any) -> None:
        """The time since the previous output gradient arrived belongs to the layer whose gradient that was."""
        layer, awake, one, before = last
        recorder, step = self.core.recorder, self.core.recorder.step
        since = awake + self.core.held_ns  # a run that was held in between is charged for none of it
        if before is None:
            recorder.span(layer.site, Phase.BACKWARD, (since, now - since), pass_id=one.id)
        elif mark is not None and mark is not UNTIMED and before is not UNTIMED:

            def deliver(nanoseconds: int) -> None:
                recorder.span(layer.site, Phase.BACKWARD, (since, nanoseconds), pass_id=one.id, step=step)

            self.core.device.elapsed(before, mark, deliver)

    def backward_ended(self) -> None:
        if self.quick.one is not None:
            self.quick.c.backward_ended()
            self.quick.settle()
        last, self.last_backward[0] = self.last_backward[0], None
        if last is not None:
            timed = last[3] is not None and last[3] is not UNTIMED
            self._charge_backward(last, now_ns(), self.core.device.mark() if timed else last[3])

    def _locate(self, layer: Layer, module: nn.Module, outputs: list[Tensor], entered: Tensor | None) -> None:
        layer.located = True
        first = next(filter(measurable, outputs), None)
        if first is None:
            return
        known = self.core.recorder.sites[layer.site]
        self.core.recorder.refine_site(
            layer.site,
            shape=tuple(first.shape),
            input_shape=None if entered is None else tuple(entered.shape),
            dtype=dtype_name(first.dtype),
            device=device_name(first.device),
            source=self.core.recorder.frames.line(4) or known.source,
            flops=flops_of(module, entered, first),
        )


def _given_first(args: Any) -> Tensor | None:
    return args[0] if args and isinstance(args[0], Tensor) else next(tensors(args), None)


def _sized(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested
