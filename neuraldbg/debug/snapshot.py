"""A tensor as a safetensors file (its one entry is called `tensor`): copied now, written later, whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from neuraldbg.capture.arrays import NoNumbers, Numbers
from neuraldbg.capture.kernels.elements import Element
from neuraldbg.debug.hook_parts import HookContext

SUFFIX: Final = ".safetensors"
LARGEST: Final = 2**30  # bytes of a tensor that is saved
NAMES: Final = {
    **{Element[f"float{bits}"]: f"F{bits}" for bits in (16, 32, 64)},
    **{Element[f"int{bits}"]: f"I{bits}" for bits in (8, 16, 32, 64)},
    **{Element[f"uint{bits}"]: f"U{bits}" for bits in (8, 16, 32, 64)},
    Element.bfloat16: "BF16",
    Element.float8_e4m3fn: "F8_E4M3",
    Element.float8_e5m2: "F8_E5M2",
    Element.bool: "BOOL",
}


def place_of(path: str | os.PathLike[str], context: HookContext) -> Path:
    """A file as it is named, with layer, step and operation where it asks for them; else one in that folder."""
    text = os.fspath(path)
    layer = re.sub(r"[^\w.-]+", "_", context.layer) or "model"
    told = {"layer": layer, "step": context.step, "operation": context.operation}
    if "{" in text:
        text = re.sub(r"\{(layer|step|operation)\}", lambda match: str(told[match[1]]), text)
    if text.endswith(SUFFIX):
        return Path(text)
    return Path(text) / f"{layer}-{context.operation}-step{context.step}{SUFFIX}"


def write_snapshot(numbers: Numbers) -> Callable[[Path], None]:
    """The values as they are now, and what writes them to a file."""
    if numbers.dtype.startswith("complex") or numbers.sparse:
        kind = "sparse" if numbers.sparse else "complex"
        raise NoNumbers(f"a {kind} tensor cannot be saved as safetensors")
    if numbers.count * numbers.compact.itemsize > LARGEST:
        raise NoNumbers(f"a tensor of {numbers.count} elements is too large for a snapshot (1 GB)")
    shape = numbers.shape
    compact = numbers.compact if numbers.count else numbers.compact.reshape(shape)
    raw = np.array(np.broadcast_to(compact, shape), order="C").tobytes()
    about = {"dtype": NAMES[numbers.element], "shape": list(shape), "data_offsets": [0, len(raw)]}
    header = json.dumps({"__metadata__": {"format": "neuraldbg"}, "tensor": about}).encode()
    header += b" " * (-len(header) % 8)

    def write(place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            draft.write_bytes(len(header).to_bytes(8, "little") + header + raw)
            os.replace(draft, place)
        finally:
            draft.unlink(missing_ok=True)

    return write
