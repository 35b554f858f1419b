"""Hashes of tensors wherever they lie. Of one on a device, two sums are made there; nobody waits for them, and whoever
writes the recording reads them when they have come. The hash is that of the same bits in host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from neuraldbg.capture.guard import attempt_or_why
from neuraldbg.capture.kernels import host
from neuraldbg.capture.kernels.device import DevicePass, readable
from neuraldbg.capture.kernels.twin import KEYS, hash_from_sums
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.stats import all_salted, digest_of, measurable, salted

# of gradients, in one update: of more, others have their turn in the next one. One that is another also makes other
# outputs in the pass after it, and those are hashed every time
HASHED_BYTES: Final = 2**19
HASHED_ON_DEVICE: Final = 4  # gradients of one update: each is several launches
PIECE: Final = 2**20  # words of 8 bytes that are hashed at a time where there is no kernel: bounds the memory it takes
_HALF: Final = 0xFFFFFFFF
_GOLDEN: Final = 0x9E3779B97F4A7C15 - 2**64
_MIX_1: Final = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2: Final = 0x94D049BB133111EB - 2**64
_WORD: Final = (1 << 64) - 1
_NEXT: Final = 1099511628211


@dataclass(eq=False)
class LateSums:
    """Of one tensor: what its hash is mixed from, still on the device."""

    sums: Tensor
    bytes: int
    shape: torch.Size
    dtype: torch.dtype

    def read(self, host: Callable[[Tensor], Tensor]) -> int:
        products, plain = host(self.sums).tolist()
        return salted(hash_from_sums(products, plain, self.bytes), self.shape, self.dtype)


@dataclass(eq=False)
class LateDigest:
    """Of several tensors, in their order."""

    parts: list[int | LateSums]

    def read(self, host: Callable[[Tensor], Tensor] = Tensor.cpu) -> int:
        return combined([part if isinstance(part, int) else part.read(host) for part in self.parts])

    @property
    def on_device(self) -> list[Tensor]:
        return [part.sums for part in self.parts if not isinstance(part, int)]


Digest = int | LateDigest


def combined(parts: list[int]) -> int:
    """As `passes.output_digest` does; 0 where one of them could not be read."""
    if 0 in parts:
        return 0
    total = 0
    for position, one in enumerate(parts):
        total = (total * _NEXT + one + position) & _WORD
    return total


class Hasher:
    """One for a recording or a replay."""

    def __init__(self) -> None:
        self._passes: dict[torch.device, DevicePass | None] = {}

    def of(self, *given: Tensor) -> Digest:
        """Without waiting for a device. 0: it cannot be read."""
        parts = [self._one(each) for each in given]
        known = [part for part in parts if isinstance(part, int)]
        return combined(known) if len(known) == len(parts) else LateDigest(parts)

    def of_one(self, tensor: Tensor) -> Digest:
        """The same, in fewer frames."""
        part = digest_of(tensor) if tensor.is_cpu else self._one(tensor)
        return part if isinstance(part, int) else LateDigest([part])

    def of_outputs(self, outputs: Any) -> Digest:
        return self.of_one(outputs) if isinstance(outputs, Tensor) else self.of(*tensors(outputs))

    def now_sync(self, *given: Tensor) -> int:
        return settled(self.of(*given))

    @torch.no_grad()
    def _one(self, tensor: Tensor) -> int | LateSums:
        if tensor.device.type != "cuda":
            return digest_of(tensor)
        if tensor.layout != torch.strided or not measurable(tensor) or torch.cuda.is_current_stream_capturing():
            return 0
        values = tensor.detach()
        if values.is_complex():
            values = torch.view_as_real(values.resolve_conj())
        values = values.resolve_neg().contiguous()
        size = values.numel() * values.element_size()
        return LateSums(self._sums(values), size, tensor.shape, tensor.dtype)

    def _sums(self, values: Tensor) -> Tensor:
        device = values.device
        if device not in self._passes:
            made = None if torch.version.hip is not None else attempt_or_why(lambda: DevicePass(device))[0]
            self._passes[device] = made
        fused = self._passes[device]
        if fused is not None and readable(values):
            with torch.cuda.device(device):
                found, why = attempt_or_why(lambda: fused.hash_sums(values))
            if why is None:
                sums: Tensor = found
                return sums
            self._passes[device] = None
        return sums_by_torch(values)


class HashesInTurn:
    """Of the gradients of an update: of all, or of as many as take no time, each in its turn."""

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._turn = 0  # of the parameter whose gradient is hashed next
        self._all_at_once = host.gradient_hashes  # None where there is no kernel, or one of them was not for it

    def of_gradients(self, held: list[Tensor]) -> dict[int, Digest]:
        """By position."""
        hashes = None if self._all_at_once is None else self._all_at_once(held, self._turn, HASHED_BYTES)
        if hashes is None:
            self._all_at_once = None
            return self._one_by_one(held)
        found, after = hashes
        self._turn = self._turn if after is None else after
        return all_salted(found)  # type: ignore[return-value]

    @torch.no_grad()
    def _one_by_one(self, held: list[Tensor]) -> dict[int, Digest]:
        found: dict[int, Digest] = {}
        read = launched = 0
        for number in range(len(held)):
            at = (self._turn + number) % len(held)
            gradient = held[at].grad
            if gradient is not None:
                found[at] = self._hasher.of_one(gradient)
                read += gradient.numel() * gradient.element_size()
                launched += gradient.is_cuda
            if read > HASHED_BYTES or launched >= HASHED_ON_DEVICE:
                self._turn = at + 1
                break
        return found


def settled(digest: Digest) -> int:
    """Waits for the device."""
    return digest if isinstance(digest, int) else digest.read()


def sums_by_torch(values: Tensor) -> Tensor:
    """The two sums of `twin.hash_of`, by torch operations on the tensor's own device. `values` lie in order."""
    raw = values.reshape(-1).view(torch.uint8)
    if raw.numel() % 8:
        raw = torch.cat([raw, raw.new_zeros(-raw.numel() % 8)])
    words = raw.view(torch.int64) if raw.storage_offset() % 8 == 0 else raw.clone().view(torch.int64)
    keys = _mixed((torch.arange(KEYS, device=words.device) + 1) * _GOLDEN)
    products, plain = [], []
    for start in range(0, words.numel(), PIECE):
        part = words[start : start + PIECE]
        index = torch.arange(start, start + part.numel(), device=words.device)
        offset = _mixed((index // KEYS + 2**32 + 1) * _GOLDEN)
        key = keys[index % KEYS]
        low = (part & _HALF) + (key & _HALF) + (offset & _HALF)
        high = _upper(part) + _upper(key) + _upper(offset)
        products.append(((low & _HALF) * (high & _HALF)).sum())
        plain.append(part.sum())
    if not products:
        return words.new_zeros(2)
    return torch.stack([torch.stack(products).sum(), torch.stack(plain).sum()])


def _upper(x: Tensor) -> Tensor:
    return (x >> 32) & _HALF


def _mixed(x: Tensor) -> Tensor:
    """The finaliser of splitmix64 on signed words: shifts have to bring in zeros."""
    x = (x ^ _shifted(x, 30)) * _MIX_1
    x = (x ^ _shifted(x, 27)) * _MIX_2
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)
