"""Tensors and a JSON text in one file, in the safetensors format: written without a copy, whole or not at all."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuraldbg.errors import NotRecorded

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
SMALL = 2**15  # bytes: such parts are copied, since a call of the system takes longer
writable = frozenset(_NAMES)
Tensors = Mapping[str, Tensor]


class BrokenFile(NotRecorded):
    """It was cut off, or is something else."""


def write(path: Path, tensors: Tensors, about: Any) -> int:
    """Bytes written. A reader finds the whole file or none."""
    strides = {name: layout for name, tensor in tensors.items() if (layout := layout_of(tensor)) is not None}
    header: dict[str, Any] = {"__metadata__": {"neuraldbg": json.dumps(about), "strides": json.dumps(strides)}}
    parts, offset = [], 0
    for name, tensor in tensors.items():
        part = _bytes_of(tensor)
        place = [offset, offset + len(part)]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        parts.append(part)
        offset += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb", buffering=0) as file:
            _write_all(file, [len(text).to_bytes(8, "little"), text, *parts])
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return 8 + len(text) + offset


def _write_all(file: Any, parts: list[Any]) -> None:
    for _, some in groupby(parts, lambda part: len(part) < SMALL):
        together = list(some)
        for part in together if len(together[0]) >= SMALL else [b"".join(together)]:
            view = memoryview(part)
            while len(view):
                view = view[file.write(view) :]


def _bytes_of(tensor: Tensor) -> Any:
    """In the order of memory, which of a transposed tensor is not that of its shape: see `layout_of`."""
    if not tensor.numel():
        return b""
    flat = tensor.detach().cpu()
    flat = torch.as_strided(flat, (flat.numel(),), (1,)) if layout_of(flat) else flat.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def layout_of(tensor: Tensor) -> list[int] | None:
    """Strides of a tensor that lies in one piece, in another order than its shape (channels last)."""
    if tensor.is_contiguous() or not tensor.numel():
        return None
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return None
        expected *= size
    return list(tensor.stride())


def read_about(path: Path) -> Any:
    """The JSON text of a file, without its tensors."""
    with open(path, "rb") as file:
        return json.loads(_header(file, path)["__metadata__"]["neuraldbg"])


def read(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Views of the file's own memory: copied when somebody writes to them."""
    with open(path, "rb") as file:
        header = _header(file, path)
        begins = file.tell()
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    told = header.pop("__metadata__")
    strides = json.loads(told["strides"])
    found = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype = _DTYPES[entry["dtype"]]
        if begins + last > len(memory):
            raise BrokenFile(f"the recording is damaged: {path.name} is cut off")
        count = (last - first) // dtype.itemsize
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=begins + first) if count else None
        flat = torch.empty(0, dtype=dtype) if flat is None else flat
        shape = entry["shape"]
        found[name] = torch.as_strided(flat, shape, strides[name]) if name in strides else flat.reshape(shape)
    return found, json.loads(told["neuraldbg"])


def _header(file: Any, path: Path) -> dict[str, Any]:
    try:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length)) if length < 2**31 else {}
        header["__metadata__"]["neuraldbg"]
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenFile(f"the recording is damaged: {path.name} cannot be read ({error})") from None
    return header
