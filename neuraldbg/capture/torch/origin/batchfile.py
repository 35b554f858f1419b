"""The batch that led to a NaN, kept for the user to look at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.hooks import PassWatch
from neuraldbg.capture.torch.nested import leaves
from neuraldbg.capture.torch.passes import KeptTensor, Pass, WeakValue

MOST_BYTES = 32 * 2**20
NAME = "bad-batch.pt"


def save_batch(core: Core, passes: PassWatch, batches: Any) -> str | None:
    """`torch.load` gives a dict of tensors: the inputs of the passes of this step, and what loaders handed out."""
    writer = core.recorder.writer
    if writer is None:
        return None
    found: dict[str, Tensor] = {}
    room = MOST_BYTES
    for name, tensor in _tensors(passes, batches):
        size = tensor.numel() * tensor.element_size()
        if size <= room and tensor.layout == torch.strided:
            room -= size
            found[name] = tensor.detach().cpu().clone()
    path = writer.directory / NAME
    if not found or path.exists():
        return str(path) if path.exists() else None
    save = getattr(torch.save, "__wrapped__", torch.save)  # this file is no checkpoint of the user's
    attempt(lambda: save(found, path))
    return str(path) if path.exists() else None


def _tensors(passes: PassWatch, batches: Any) -> Any:
    for one in passes.kept():
        for slot, tensor in enumerate(_inputs(one)):
            yield f"{one.model.name} pass {one.id} input {slot}", tensor
    for number, batch in enumerate(batches):
        for slot, ref in enumerate(batch):
            if ref() is not None:
                yield f"batch {number - len(batches)} tensor {slot}", ref()


def _inputs(one: Pass) -> list[Tensor]:
    if one.record is not None:
        return [kept.tensor for kept in leaves((one.record.args, one.record.kwargs), KeptTensor)]
    if one.light is not None:
        values = [leaf.ref() for leaf in leaves(one.light.inputs, WeakValue)]
        return [value for value in values if isinstance(value, Tensor)]
    return []
