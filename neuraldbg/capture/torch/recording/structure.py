"""What a pass finds around it, read in one go: training flags, which parameters are trainable, copies of the buffers.

Small buffers of one type are copied into one tensor: of a ResNet's sixty, two copies are made and written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.pieces import copy_of
from neuraldbg.capture.torch.structures import Structures, Surroundings

SMALL_BUFFER: Final = 2**16  # bytes: BatchNorm moves its buffers without their version counter telling
Kind = tuple[torch.dtype, torch.device]
Flags = tuple[bool, ...]


@dataclass(eq=False)
class Layout:
    """How tensors lie one after the other in one. The same object from pass to pass."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def parts(self, packed: Tensor) -> Iterator[tuple[str, Tensor]]:
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            count = 1
            for size in shape:
                count *= size
            yield name, packed[start : start + count].view(shape)
            start += count


class Buffers(Mapping[str, Tensor]):
    """Copies by name; taken apart when somebody asks."""

    def __init__(self, single: dict[str, Tensor], packed: list[tuple[Layout, Tensor]]) -> None:
        self.single, self.packed = single, packed
        self._apart: dict[str, Tensor] | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """As they are held."""
        return [*self.single.values(), *(tensor for _, tensor in self.packed)]

    def _parts(self) -> dict[str, Tensor]:
        if self._apart is None:
            self._apart = dict(self.single)
            for layout, tensor in self.packed:
                self._apart.update(layout.parts(tensor))
        return self._apart

    def __getitem__(self, name: str) -> Tensor:
        return self._parts()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts())

    def __len__(self) -> int:
        return len(self._parts())


Layouts = dict[tuple[Kind, tuple[str, ...], tuple[Any, ...]], Layout]


class Around:
    """Remembers what it has copied."""

    def __init__(self) -> None:
        self._structures = Structures()
        self._layouts: IdentityTable[Layouts] = IdentityTable()  # of a model's buffers
        self._large: IdentityTable[tuple[int, Tensor]] = IdentityTable()  # buffer -> version and copy of it

    def look(self, root: nn.Module, seen: Surroundings | None = None) -> tuple[Flags, Flags, Buffers]:
        """`seen`: where somebody has looked a moment ago."""
        training, trainable, buffers = self._structures.look(root) if seen is None else seen
        small: dict[Kind, list[tuple[str, Tensor]]] = {}
        single: dict[str, Tensor] = {}
        for path, name, buffer in buffers:
            key = f"{path}.{name}" if path else name
            if _is_small(buffer):
                small.setdefault((buffer.dtype, buffer.device), []).append((key, buffer))
            else:
                single[key] = self._copied(buffer)
        return training, trainable, Buffers(single, self._packed(root, small) if small else [])

    @torch.no_grad()
    def _packed(self, root: nn.Module, small: dict[Kind, list[tuple[str, Tensor]]]) -> list[tuple[Layout, Tensor]]:
        found = []
        layouts = self._layouts.get(root)
        if layouts is None:
            layouts = self._layouts[root] = {}
        for kind, named in small.items():
            names, shapes = tuple(name for name, _ in named), tuple(each.shape for _, each in named)
            layout = layouts.get((kind, names, shapes))
            if layout is None:
                layout = layouts[kind, names, shapes] = Layout(names, tuple(tuple(each) for each in shapes))
            flat = [each if each.dim() == 1 else each.reshape(-1) for _, each in named]
            found.append((layout, torch.cat(flat) if len(flat) > 1 else flat[0].clone()))
        return found

    def _copied(self, buffer: Tensor) -> Tensor:
        """One that has not been written to since is copied once."""
        if buffer.is_inference():
            return buffer.detach().clone()
        kept = self._large.get(buffer)
        if kept is None or kept[0] != buffer._version:
            kept = self._large[buffer] = (buffer._version, copy_of(buffer))
        return kept[1]


def _is_small(buffer: Tensor) -> bool:
    return (
        type(buffer) in (Tensor, nn.Parameter)
        and buffer.layout is torch.strided
        and not buffer.is_quantized
        and buffer.is_contiguous()
        and buffer.numel() * buffer.element_size() <= SMALL_BUFFER
    )
