"""Several values into one."""

from __future__ import annotations

from neuraldbg.dsl.graph import Shape, size, written
from neuraldbg.dsl.rules.use import DoesNotFit, Made, Use, rule

_ELEMENTWISE = {
    "Add": "add",
    "Subtract": "subtract",
    "Multiply": "multiply",
    "Average": "average",
    "Maximum": "maximum",
}


def broadcast(shapes: tuple[Shape, ...]) -> Shape | None:
    """The common shape; a vector goes with every position of a larger value. None where there is none."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = []
    for sizes in zip(*padded, strict=True):
        distinct = {each for each in sizes if each != 1}
        if len(distinct) > 1:
            return None
        out.append(distinct.pop() if distinct else 1)
    return tuple(out)


@rule(*_ELEMENTWISE)
def elementwise(use: Use) -> Made:
    shape = broadcast(use.shapes)
    if shape is None:
        raise DoesNotFit(f"its inputs have different shapes: {', '.join(map(written, use.shapes))}")
    op = _ELEMENTWISE[use.layer.type]
    if op == "subtract" and len(use.shapes) != 2:
        raise DoesNotFit(f"it takes two inputs, not {len(use.shapes)}")
    return Made(op, shape, flops=size(shape) * (len(use.shapes) - 1))


@rule("Concatenate")
def concatenate(use: Use) -> Made:
    axis = use.integer("axis", default=-1, least=-10)
    rank = len(use.shape)
    if {len(shape) for shape in use.shapes} != {rank}:
        raise DoesNotFit(f"its inputs have different ranks: {', '.join(map(written, use.shapes))}")
    place = axis - 1 if axis > 0 else axis + rank if axis < 0 else 0
    if not 0 <= place < rank:
        raise DoesNotFit(f"there is no axis {axis} in {written(use.shape)}")
    rest = {shape[:place] + shape[place + 1 :] for shape in use.shapes}
    if len(rest) > 1:
        raise DoesNotFit(f"its inputs differ in more than axis {axis}: {', '.join(map(written, use.shapes))}")
    total = sum(shape[place] for shape in use.shapes)
    return Made("concatenate", (*use.shape[:place], total, *use.shape[place + 1 :]), {"axis": place + 1})


@rule("Dot")
def dot(use: Use) -> Made:
    if len(use.shapes) != 2 or len({len(shape) for shape in use.shapes}) != 1:
        raise DoesNotFit(f"it takes two inputs of one rank, not {', '.join(map(written, use.shapes))}")
    first, second = use.shapes
    if first[-1] != second[-1]:
        raise DoesNotFit(f"the last sizes of its inputs differ: {written(first)} and {written(second)}")
    normalize = use.flag("normalize")
    shape = (1,) if len(first) == 1 else (*first[:-1], second[-2])
    return Made("dot", shape, {"rank": len(first), "normalize": normalize}, flops=2 * size(shape) * first[-1])
