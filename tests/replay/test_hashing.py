"""A hash made where a tensor lies, piece by piece and read later, is that of the same bits in host memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import output_digest
from neuraldbg.capture.torch.recording import hashing
from neuraldbg.capture.torch.recording.hashing import Hasher, LateDigest, LateSums, settled, sums_by_torch
from neuraldbg.capture.torch.stats import digest_of


def late(tensor: Tensor) -> LateSums:
    values = tensor.detach().contiguous()
    size = values.numel() * values.element_size()
    return LateSums(sums_by_torch(values), size, tensor.shape, tensor.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("size", [0, 1, 3, 7, 8, 511, 4096, 70_001])
def test_the_sums_give_the_hash_of_host_memory(dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "PIECE", 1000)
    tensor = (torch.randn(size, generator=torch.Generator().manual_seed(size)) * 100).to(dtype)
    assert LateDigest([late(tensor)]).read() == digest_of(tensor)


def test_of_several_tensors_the_order_counts() -> None:
    one, other = torch.randn(5, 3), torch.randn(7)
    assert LateDigest([late(one), late(other)]).read() == output_digest((one, other)) == Hasher().now_sync(one, other)
    assert LateDigest([late(other), late(one)]).read() != output_digest((one, other))


def test_what_cannot_be_read_makes_no_hash() -> None:
    assert settled(Hasher().of(torch.randn(3), torch.empty(3, device="meta"))) == 0


def test_a_moved_or_changed_element_is_another_hash() -> None:
    tensor = torch.randn(4096)
    before = LateDigest([late(tensor)]).read()
    moved = tensor.clone()
    moved[[3, 700]] = tensor[[700, 3]]
    changed = tensor.clone()
    changed.view(torch.int32)[9] ^= 1
    assert len({before, LateDigest([late(moved)]).read(), LateDigest([late(changed)]).read()}) == 3


@pytest.mark.parametrize("outputs", [torch.arange(6.0), (torch.ones(2), torch.zeros(3)), {"a": torch.ones(1)}, ()])
def test_outputs_have_the_hash_that_a_pass_has_taken(outputs: Any) -> None:
    hasher = Hasher()
    assert hasher.of_outputs(outputs) == output_digest(outputs) == hasher.of(*tensors(outputs))
