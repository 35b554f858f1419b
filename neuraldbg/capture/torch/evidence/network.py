"""The network as its graph shows it: which activations are flat or dead, which linear maps follow each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neuraldbg.capture.kernels import host, twin
from neuraldbg.capture.places import FIRST_LOOKS, FLAT, LATER, MOST_ELEMENTS, RECTIFIED, Place
from neuraldbg.capture.torch.evidence.graph_walk import SHAPES, Visit, Walk, saved, shared_walk
from neuraldbg.capture.torch.stats import measurable

DEEP = 6_000  # operations read below a loss
MOST_PLACES = 256
WEIGHTED = {"Addmm", "Mm", "Convolution", "MkldnnConvolution", "Linear", "Baddbmm", "MkldnnRnnLayer"}
BOUNDED = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Hardtanh": None, "Hardsigmoid": None}
OTHER = {"LeakyRelu", "Gelu", "Silu", "Elu", "Selu", "Softplus", "Mish", "Hardswish", "Prelu", "Glu", "LogSigmoid"}
ACTIVATIONS = {*BOUNDED, *RECTIFIED, *OTHER}
Array = NDArray[Any]
NORMALISING = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RmsNorm")


class Network:
    """Facts `activation` (one per place, again when much has changed and at the end) and `stack` (once per line that
    calls backward)."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self._looks: dict[int, int] = {}
        self._next: dict[int, float] = {}
        self._places: dict[tuple[Any, ...], Place] = {}
        self._kept_as: dict[str, str] = {}  # operation -> attribute of its node that holds what it put out
        self.core.take_part("backward_begun", "activations", self._begun, rarely=True)
        self.core.take_part("ending", "activations", self._end)

    def _begun(self, loss: Tensor | None, source: int) -> None:
        if loss is None or not self.core.closely or loss.grad_fn is None:
            return
        step, looks = self.core.recorder.step, self._looks.get(source, 0)
        if looks >= FIRST_LOOKS and step < self._next[source]:
            return
        self._looks[source] = looks + 1
        self._next[source] = max(step, 1) * LATER
        graph = shared_walk(self.core, loss, DEEP)
        if looks == 0:
            self._stack(graph, source)
        self._activations(graph)

    # -- activations -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _activations(self, graph: Walk) -> None:
        order = 0
        for visit in graph.visits:
            if visit.name not in ACTIVATIONS:
                continue
            value = self._value(visit)
            order += 1
            if value is None or not measurable(value) or not value.is_cpu or not 0 < value.numel() <= MOST_ELEMENTS:
                continue
            fed, shape = graph.past_shapes(graph.operand(visit)), value.shape
            place = self._place(visit, None if fed is None else fed.layer, shape[1:], order)
            axis = _units_of(shape, conv=fed is not None and "Convolution" in fed.name)
            if place is not None and axis is not None and value.numel() >= 2 * shape[axis]:
                self._look(place, value, shape[axis], axis)

    def _value(self, visit: Visit) -> Tensor | None:
        """What an activation put out, or for those that keep only their input, that. It may require a gradient."""
        known = self._kept_as.get(visit.name)
        if known is not None:
            try:
                value = getattr(visit.node, known, None)
            except RuntimeError:  # let go of
                value = None
            if isinstance(value, Tensor):
                return value
        for name in ("result", "self", "output"):
            value = saved(visit.node, name)
            if isinstance(value, Tensor):
                self._kept_as[visit.name] = f"_saved_{name}"
                return value
        return None

    def _place(self, visit: Visit, fed_by: int | None, shape: tuple[int, ...], order: int) -> Place | None:
        """`shape`: of one sample."""
        layer = visit.layer
        key = (visit.name, layer, fed_by, shape)
        place = self._places.get(key)
        if place is None and len(self._places) < MOST_PLACES:
            place = self._places[key] = Place(visit.name, layer, fed_by, order)
        return place

    def _look(self, place: Place, value: Tensor, units: int, axis: int) -> None:
        name = place.op
        place.looks += 1
        place.units = units
        if name in RECTIFIED:
            dead = place.dead
            if dead is None or len(dead) != units or 1 in dead:  # what has put something out stays alive
                place.dead = _silent(value, axis, dead)
        elif (bounds := BOUNDED.get(name)) is not None:
            others = tuple([dim for dim in range(value.dim()) if dim != axis])  # samples and positions
            flat = _flat(bounds, _array(value))
            place.flat_share = float(flat.mean())
            place.stuck = _narrowed(place.stuck, flat.all(axis=others))
        if place.looks == 1 or place.looks >= FIRST_LOOKS:  # later looks are rare: who reads along hears of each
            self._write(place)

    def _end(self) -> None:
        for place in self._places.values():
            if place.looks > 1:
                self._write(place)

    def _write(self, place: Place) -> None:
        self.core.recorder.fact("activation", **place.told(_set_in))

    # -- the stack ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _stack(self, graph: Walk, source: int) -> None:
        """Weighted layers that take another one's output as it is, and what kinds of operation the network has."""
        weighted = [visit for visit in graph.visits if visit.name in WEIGHTED]
        pairs = []
        readers = Counter(child for visit in graph.visits for child, _ in visit.edges)
        for visit in weighted:
            before = _feeder(graph, visit, readers)
            if before is None or readers[before.node] > 1:
                continue  # a skip connection reads it as well
            if any((saved(one.node, "groups") or 1) > 1 for one in (before, visit)):
                continue  # a filter per channel, and what mixes them: two halves of one convolution
            if before.layer is not None and before.layer != visit.layer:
                pairs.append([before.layer, visit.layer, *_widths(before, visit), _attends(visit)])
        names = {visit.name for visit in graph.visits}
        self.core.recorder.fact(
            "stack",
            source_id=source,
            weighted=len(weighted),
            pairs=pairs[:32],
            activations=sorted(names & ACTIVATIONS),
            normalised=any(name.startswith(("Native", "Cudnn", *NORMALISING)) and "Norm" in name for name in names),
            nonlinear=sorted(name for name in names if _bends(name))[:16],
            complete=len(graph.visits) < DEEP,
            **_most_dropped(graph),
        )


def _units_of(shape: tuple[int, ...], *, conv: bool) -> int | None:
    """The dimension that its units lie along; samples (and positions) along the others."""
    if len(shape) < 2:
        return None
    return 1 if conv or len(shape) == 4 else len(shape) - 1


def _silent(value: Tensor, axis: int, before: bytes | None) -> bytes:
    """Of each unit whether it is zero for every sample, and was `before`."""
    found: bytes | None = None if host.silent is None else host.silent(value, axis, before)
    return twin.silent(_array(value), axis, before) if found is None else found


def _set_in(flags: Any) -> list[int]:
    units: list[int] = np.flatnonzero(np.frombuffer(flags, np.bool_)).tolist()
    return units


def _array(value: Tensor) -> Array:
    """NumPy asks all samples at once, and takes a tenth of the time that torch does for it."""
    wide = value.dtype in (torch.float32, torch.float64)
    array: Array = (value if wide else value.float()).detach().resolve_neg().numpy()
    return array


def _flat(bounds: tuple[float, float], values: Array) -> Array:
    low, high = bounds
    margin = FLAT * (high - low)
    flat: Array = (values < low + margin) | (values > high - margin)
    return flat


def _narrowed(before: Any, now: Any) -> Any:
    return now if before is None or before.shape != now.shape else before & now


def _feeder(graph: Walk, visit: Visit, readers: Counter[Any]) -> Visit | None:
    """The weighted operation whose result this one takes unchanged, or only scaled or thinned out by a dropout; None
    where anything else lies between."""
    for slot in range(len(visit.edges)):
        below = graph.past_shapes(graph.below(visit, slot))
        room = 4
        while below is not None and room and readers[below.node] == 1 and _keeps_linear(below):
            below = graph.past_shapes(graph.operand(below))
            room -= 1
        if below is not None and below.name in WEIGHTED and below.name != "MkldnnRnnLayer":
            return below
    return None


def _keeps_linear(visit: Visit) -> bool:
    """A dropout, or a constant factor. A mask of ones and zeros that was computed is neither: x * (x > 0) is a relu."""
    if visit.name in ("NativeDropout", "FusedDropout"):
        return True
    operands = [child for child, _ in visit.edges]
    computed = [slot for slot, child in enumerate(operands) if child is not None]
    if visit.name not in ("Mul", "Div") or len(computed) != 1 or (visit.name == "Div" and computed != [0]):
        return False
    by = saved(visit.node, "other" if computed == [0] else "self")
    if not isinstance(by, Tensor) or by.numel() == 1:
        return True
    return _dropped(visit) is not None


def _most_dropped(graph: Walk) -> dict[str, Any]:
    """The largest share that a dropout leaves out, and the layer whose output it takes."""
    known = [(share, visit) for visit in graph.visits if (share := _dropped(visit)) is not None]
    if not known:
        return {"dropped": None, "dropped_after": None}
    share, first = max(known, key=lambda one: one[0])
    below: Visit | None = first
    for _ in range(4):
        below = None if below is None else graph.past_shapes(graph.operand(below))
        if below is not None and below.layer != first.layer:
            break
    return {"dropped": share, "dropped_after": None if below is None else below.layer}


def _dropped(visit: Visit) -> float | None:
    """The share that a dropout leaves out: on the CPU it is a product with a mask of 0 and 1 / (1 - p)."""
    if visit.name in ("NativeDropout", "FusedDropout"):
        p = saved(visit.node, "p")
        return float(p) if isinstance(p, int | float) else None
    masks = [saved(visit.node, name) for name in ("other", "self")] if visit.name == "Mul" else []
    by = next((mask for mask in masks if isinstance(mask, Tensor)), None)
    if by is None or by.is_cuda or not by.is_floating_point() or not 1 < by.numel() <= MOST_ELEMENTS:
        return None
    kept = by[by != 0]
    if kept.numel() == 0 or float(kept[0]) <= 1.0 or not bool((kept == kept[0]).all()) or kept.numel() == by.numel():
        return None
    return 1.0 - 1.0 / float(kept[0])


def _widths(before: Visit, after: Visit) -> tuple[int | None, int | None]:
    """Units between the two, and units of the second."""
    return _width(before), _width(after)


def _width(visit: Visit) -> int | None:
    shape = visit.shape
    if shape is None or len(shape) < 2:
        return None
    return shape[1] if "Convolution" in visit.name else shape[-1]


def _attends(visit: Visit, room: int = 12) -> bool:
    """Whether the result goes on into an attention: projections there follow each other by design."""
    for above in visit.up():
        if above.name in ("Bmm", "ScaledDotProductFlashAttentionForCpu", "ScaledDotProductAttention") or (
            "ScaledDotProduct" in above.name
        ):
            return True
        if above.name not in SHAPES and above.name not in ("Mul", "Div", "Unbind", "Split", "Chunk", "Cat", "Stack"):
            return False
        room -= 1
        if not room:
            return False
    return False


_LINEAR = {"Addmm", "Mm", "Add", "Sub", "Mean", "Sum", "Neg", "Rsub", "AccumulateGrad", "Convolution", "Bmm"}


def _bends(name: str) -> bool:
    return name not in _LINEAR and name not in SHAPES and name not in ("MseLoss", "NllLoss", "LogSoftmax")
