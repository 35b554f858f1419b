"""What a merging layer merges: named layers, branches, inputs, or the start of the macro it stands in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuraldbg.dsl.graph import Shape, size, written
from neuraldbg.dsl.model import Layer, Reference
from neuraldbg.dsl.problems import Severity
from neuraldbg.dsl.rules import Made
from neuraldbg.dsl.rules.merging import broadcast
from neuraldbg.errors import nearest

if TYPE_CHECKING:
    from neuraldbg.dsl.lower import Lowering


def merge_operands(low: Lowering, layer: Layer) -> list[int]:
    """Empty where there is nothing to merge with: the layer then passes its input on."""
    given = _named(low, layer)
    if len(given) > 1:
        return _fitted(low, layer, given)
    if given:
        return _fitted(low, layer, [low.current, given[0]])
    if len(low.pending) > 1:
        return _fitted(low, layer, [value for _, value in low.pending])
    if len(low.pending) == 1:
        return _fitted(low, layer, [low.pending[0][1], low.current])
    unused = [value for value in low.inputs if value not in low.used and value != low.current]
    in_macro = bool(low.starts) and low.starts[-1] != low.current
    if unused and not in_macro:
        return _fitted(low, layer, [low.current, *unused])
    return _residual(low, layer)


def _named(low: Lowering, layer: Layer) -> list[int]:
    found: list[int] = []
    for name in ("inputs", "layers", "operands"):
        value: Any = layer.params.get(name)
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, str | Reference):
                found.append(_resolve(low, layer, str(each)))
    return found


def _resolve(low: Lowering, layer: Layer, name: str) -> int:
    if name in low.named:
        return low.named[name]
    near = nearest(name, low.named, 1)
    hint = f"did you mean {near[0]!r}?" if near else "it must come before"
    raise low.broken(layer, f"there is no layer, branch or input {name!r} before it; {hint}", kind="value")


def _residual(low: Lowering, layer: Layer) -> list[int]:
    """Without operands: back to the start of the enclosing macro; outside one, to the last value of the same shape."""
    current = low.current
    if low.starts:
        start = low.starts[-1]
    else:
        shape = low.shape(current)
        alike = [v.id for v in low.values if v.shape == shape and v.id < current and not (v.tokens or v.folded)]
        start = alike[-1] if alike else low.inputs[0]
    if start == current:
        low.say(
            Severity.WARNING, layer, f"there is nothing to {layer.type.lower()}: its input passes through unchanged"
        )
        return []
    if layer.type == "Concatenate":
        return _fitted(low, layer, [current, start])
    fitting = aligned(low, layer, current, start)
    return [] if fitting is None else [current, fitting]


def _fitted(low: Lowering, layer: Layer, values: list[int]) -> list[int]:
    """Brought to one shape, or one rank, where the layer needs it and it can be done."""
    shapes = [low.shape(value) for value in values]
    if layer.type == "Concatenate" and len({len(shape) for shape in shapes}) > 1:
        low.say(Severity.WARNING, layer, f"its inputs are {', '.join(map(written, shapes))}: all are flattened")
        return [low.flat(value, layer) for value in values]
    if layer.type in ("Concatenate", "Dot") or broadcast(tuple(shapes)) is not None:
        return values
    fitted = [values[0]]
    for value in values[1:]:
        one = aligned(low, layer, values[0], value)
        if one is not None:
            fitted.append(one)
    return fitted if len(fitted) > 1 else []


def aligned(low: Lowering, layer: Layer, target: int, value: int) -> int | None:
    """`value` in the shape of `target`: itself, or projected; None where that cannot be."""
    want, have = low.shape(target), low.shape(value)
    if want == have and not low.values[value].tokens:
        return value
    if low.values[value].tokens:
        low.say(
            Severity.WARNING, layer, "it reaches back to token ids, which cannot be added: its input passes through"
        )
        return None
    if broadcast((want, have)) == want and size(have) > 1:
        return value
    made = _projection(want, have)
    if made is None:
        why = f"shapes {written(want)} and {written(have)} differ and cannot be projected onto each other"
        low.say(Severity.WARNING, layer, f"{why}: its input passes through unchanged")
        return None
    low.say(Severity.WARNING, layer, f"shapes {written(want)} and {written(have)} differ: the second is projected")
    current = low.current
    low.step(layer, f"{layer.name}_projection", made, [value], implied=True)
    projected, low.current = low.current, current
    return projected


def _projection(want: Shape, have: Shape) -> Made | None:
    if len(want) == len(have) and len(want) in (2, 3, 4):
        if want[:-1] == have[:-1] and len(want) == 2:
            return _dense(want, have)
        strides = tuple(-(-h // w) for w, h in zip(want[:-1], have[:-1], strict=True))
        if all(-(-h // s) == w for w, h, s in zip(want[:-1], have[:-1], strides, strict=True)):
            return _pointwise(want, have, strides)
        return None
    if len(want) == len(have) == 1:
        return _dense(want, have)
    return None


def _dense(want: Shape, have: Shape) -> Made:
    options = {"features": have[-1], "units": want[-1], "bias": True}
    return Made("dense", want, options, have[-1] * want[-1] + want[-1], 2 * size(want) * have[-1])


def _pointwise(want: Shape, have: Shape, strides: Shape) -> Made:
    rank = len(want) - 1
    options = {
        "rank": rank,
        "channels": have[-1],
        "filters": want[-1],
        "kernel": (1,) * rank,
        "strides": strides,
        "dilation": (1,) * rank,
        "groups": 1,
        "pads": [(0, 0)] * rank,
        "bias": True,
    }
    return Made("conv", want, options, have[-1] * want[-1] + want[-1], 2 * size(want) * have[-1])


def second_input(low: Lowering, layer: Layer, first: int) -> list[int]:
    """What an attention looks at besides its input, if anything."""
    cross = layer.type == "TransformerDecoder" or str(layer.params.get("mode", "")).lower() == "cross"
    named = _named(low, layer)
    if named:
        return named[:1]
    if not cross:
        return []
    others = [value for value in low.inputs if value not in low.used and value != first]
    candidates = [low.encoded] if low.encoded is not None and low.encoded != first else []
    for value in [*candidates, *others]:
        shape = low.shape(value)
        if value is not None and len(shape) == 2 and shape[-1] == low.shape(first)[-1]:
            return [value]
    if layer.type == "TransformerDecoder":
        low.say(Severity.INFO, layer, "nothing was encoded before it: it attends to itself and not to later positions")
    return []
