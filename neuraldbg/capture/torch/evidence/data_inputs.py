"""How large the numbers are that enter a network: per feature at its first layers, and the largest of every batch."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuraldbg.capture.kernels import host
from neuraldbg.capture.torch.evidence.rows import Array, as_array
from neuraldbg.capture.torch.nested import given_tensors, leaves, tensors
from neuraldbg.capture.torch.passes import Pass, WeakValue
from neuraldbg.capture.torch.stats import measurable
from neuraldbg.capture.torch.tree import Layer

LOOKS = 3  # at each first layer
MOST_LAYERS = 16
MOST_ELEMENTS = 2**18
KEPT_BYTES = 2**17  # of the data of a later look, which is judged after the first updates
MEASURED = frozenset((torch.float16, torch.float32, torch.float64))
PEAK_ELEMENTS = 2**16  # of an input that is looked through on every step; of larger ones so many, evenly spread
SERIES = 4  # models
MOST_VALUES = 1000  # different ones that are counted
CLOSELY = 512  # updates: the inputs of each; later of some, and of every one whose loss stands out
CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
FIRST = (nn.Linear, *CONV, nn.RNNBase, nn.RNNCellBase, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)


class Inputs:
    """A fact `entry_layer` for each layer that takes data as it comes (no trained layer before it) and the series
    `input_peak` (`input_peak.NAME` of further models): the largest magnitude of each training batch."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self._looks: dict[int, int] = {}
        self._series: dict[int, str] = {}
        self._large: list[tuple[weakref.ref[Tensor], str]] = []  # inputs of this step of which only a part was read
        self._read_at = self._last_pass = -1  # the step and the pass whose inputs were looked at last
        self._passes, self._backward = capture.passes, capture.backward
        self._later: list[tuple[dict[str, Any], Tensor, int]] = []  # later looks at first layers
        if self.core.budget.share != 0.0:
            self.core.take_part("ending", "inputs", self._judge_later)
            self.core.take_part("layer_run", "inputs", self._layer_run)
            capture.passes.layers.tell_only(self._layer_run, lambda kind: issubclass(kind, FIRST))
            self.core.take_part("pass_begun", "inputs", self._pass_begun)
            self.core.take_part("backward_begun", "inputs", self._backward_begun, rarely=True)  # and of odd losses

    # -- the largest of a batch ----------------------------------------------------------------------------------------

    def _pass_begun(self, one: Pass, *_: Any) -> None:
        if one.grad:
            if self._later and not self.core.budget.starting:
                self._judge_later()
            if one.step >= CLOSELY:
                self.core.rest("pass_begun", self._pass_begun)
            self._look(one, one.entered)

    def _look(self, one: Pass, entered: Iterable[Any]) -> None:
        self._last_pass = one.id
        if one.step != self._read_at:
            self._read_at = one.step
            self._large.clear()
        for tensor in entered:
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dim() > 1:
                break
        else:
            return
        if tensor.requires_grad or not tensor.numel():
            return
        series = self._series.get(one.model.site)
        if series is None:
            if len(self._series) >= SERIES:
                return
            series = f"input_peak.{one.model.name}" if self._series else "input_peak"
            self._series[one.model.site] = series
        if tensor.device.type == "cpu":
            self._peak(tensor, series)
        elif self.core.looking and measurable(tensor) and tensor.layout == torch.strided:
            self._device_peak(tensor, series)

    def _peak(self, tensor: Tensor, series: str) -> None:
        if tensor.dtype in MEASURED and tensor.numel() <= PEAK_ELEMENTS:
            row = host.measured(tensor)
            if row is not None:  # 3 us, where numpy takes 50 once its code has left the processor's cache
                if not row[7] + row[8]:
                    self.core.recorder.scalar(series, max(row[4], -row[3]))
                return
        array = as_array(tensor)
        if array is None or array.dtype.kind != "f":
            return
        if array.size > PEAK_ELEMENTS:
            self._large.append((weakref.ref(tensor), series))
            array = array.reshape(-1)[:: array.size // PEAK_ELEMENTS] if tensor.is_contiguous() else array[:1]
        self._write_peak(array, series)

    def _backward_begun(self, *_: Any) -> None:
        """Where the loss stands out, what went in is looked through, and all of it: a peak may have been missed."""
        if not self._backward.stands_out:
            return
        for one in list(self._passes.light)[-4:]:
            if one.light is not None and one.id > self._last_pass:
                self._look(one, [leaf.ref() for leaf in leaves(one.light.inputs, WeakValue)])
        for ref, series in self._large[-4:]:
            tensor = ref()
            array = None if tensor is None else as_array(tensor)
            if array is not None:
                self._write_peak(array, series)

    def _write_peak(self, array: Array, series: str) -> None:
        peak = max(float(array.max()), -float(array.min()))
        if math.isfinite(peak):
            self.core.recorder.scalar(series, peak)

    @torch.no_grad()
    def _device_peak(self, tensor: Tensor, series: str) -> None:
        recorder, step = self.core.recorder, self.core.recorder.step
        peak = tensor.detach().abs().amax()
        self.core.device.scalar(peak, lambda value: recorder.scalar(series, value, step=step))

    # -- first layers --------------------------------------------------------------------------------------------------

    def _layer_run(self, module: Any, layer: Layer, one: Pass, values: Any) -> None:
        """Of several layers that take the same data each has a fact of its own."""
        if not one.grad:
            return
        first = values[0][0] if values[0] else None
        if isinstance(first, Tensor) and first.requires_grad and first.dim() > 1 and first.is_floating_point():
            return  # of most layers
        looks = self._looks.get(layer.site, 0)
        if looks >= LOOKS or (looks == 0 and len(self._looks) >= MOST_LAYERS):
            return
        given = given_tensors(*values[:2])
        tensor = next((t for t in given if t.is_floating_point() and t.dim() > 1), None)
        if tensor is None or tensor.requires_grad or not any(p.requires_grad for p in module.parameters()):
            return
        array = as_array(tensor)
        output = next((as_array(t) for t in tensors(values[2])), None)
        if array is None or array.dtype.kind != "f" or array.size < 2 or output is None:
            return
        self._looks[layer.site] = looks + 1
        axis = 1 if isinstance(module, CONV) else array.ndim - 1
        about = {"site": layer.site, "layer": type(module).__name__, "look": looks + 1, "out_rms": _rms(output)}
        about["step"] = one.step
        if looks and array.nbytes <= KEPT_BYTES:
            with torch.no_grad():
                self._later.append(
                    (about, self._passes.means.memory.copy_of(tensor), axis)
                )  # not within the first updates
        else:
            self._write_layer(about, array, axis)

    def _write_layer(self, about: dict[str, Any], array: Array, axis: int) -> None:
        features = _features(array, axis)
        if len(features) >= 2 and np.isfinite(features).all():
            normalises = "Norm" in about["layer"]
            self.core.recorder.fact("entry_layer", **about, normalises=normalises, **_scales(features))

    def _judge_later(self) -> None:
        later, self._later = self._later, []
        for about, tensor, axis in later:
            array = as_array(tensor)
            if array is not None:
                self._write_layer(about, array, axis)


def _features(array: Array, axis: int) -> Array:
    """Samples and positions in rows, features in columns; of very many rows so many, evenly spread."""
    last = array if axis == array.ndim - 1 else np.moveaxis(array, axis, -1)
    rows = last.reshape(-1, array.shape[axis])
    most = max(2, MOST_ELEMENTS // rows.shape[1])
    found: Array = rows[:: max(1, len(rows) // most)].astype(np.float64)
    return found


def _scales(features: Array) -> dict[str, Any]:
    """Of finite numbers. Functions of NumPy that are written in Python take longer, at first, than all of this."""
    count, squares = len(features), features * features
    mean = np.add.reduce(features, 0) / count
    off = features - mean
    std = np.sqrt(np.add.reduce(off * off, 0) / count)
    rms = np.sqrt(np.add.reduce(squares, 0) / count)
    chosen = (std > 1e-7 * np.abs(mean) + 1e-30).nonzero()[0]
    some = len(chosen) > 0
    spread = std[chosen] if some else std
    least = int(spread.argmin())
    values, whole = _distinct(features[:256])
    return {
        "features": int(features.shape[1]),
        "constant": int(features.shape[1]) - len(chosen),
        "rms": float(np.sqrt(np.add.reduce(squares, None) / squares.size)),
        "typical_rms": _median(rms[chosen] if some else rms),
        "largest_rms": float(rms[rms.argmax()]),
        "largest_at": int(rms.argmax()),
        "largest_std": float(std[std.argmax()]),
        "smallest_std": float(spread[least]) if some else 0.0,
        "smallest_at": int(chosen[least]) if some else 0,
        "offset": float(np.maximum.reduce(np.abs(mean[chosen]) / spread)) if some else 0.0,
        "peak": float(np.maximum.reduce(np.abs(features), None)),
        "zero_share": float((features.size - np.count_nonzero(features)) / features.size),
        "values": values,
        "whole": whole,
    }


def _median(numbers: Array) -> float:
    ordered, middle = np.sort(numbers), len(numbers) // 2
    return float(ordered[middle]) if len(numbers) % 2 else float((ordered[middle - 1] + ordered[middle]) / 2)


def _distinct(numbers: Array) -> tuple[int, bool]:
    """How many different ones there are, up to MOST_VALUES, and whether all are whole."""
    flat = numbers.reshape(-1)
    some = flat[: 4 * MOST_VALUES]
    whole = bool((some == np.floor(some)).all()) and bool((numbers == np.floor(numbers)).all())
    known = _different(some)
    return min(known if known >= MOST_VALUES or len(some) == len(flat) else _different(flat), MOST_VALUES), whole


def _different(numbers: Array) -> int:
    ordered = np.sort(numbers)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(len(ordered), 1)


def _rms(array: Array) -> float | None:
    squares = np.square(array[:4096], dtype=np.float64) if array.dtype.kind == "f" else None
    value = math.nan if squares is None else float(np.sqrt(np.add.reduce(squares, None) / squares.size))
    return value if math.isfinite(value) else None
