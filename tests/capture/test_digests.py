"""Hashes that tell equal tensors from others: of every bit (`digest_of`), of a batch by a sample (`identity_of`)."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuraldbg.capture.torch.stats import digest_of, identity_of

INTEGER_OF = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32,
              torch.float64: torch.int64, torch.int64: torch.int64, torch.uint8: torch.uint8}  # fmt: skip
DTYPES = st.sampled_from(sorted(INTEGER_OF, key=str))


def random_tensor(dtype: torch.dtype, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=generator, dtype=torch.float64) * 50).to(dtype)


@given(DTYPES, st.integers(1, 300), st.integers(0, 1000), st.data())
@settings(max_examples=150)
def test_one_changed_bit_changes_the_digest(dtype: torch.dtype, size: int, seed: int, data: Any) -> None:
    tensor = random_tensor(dtype, size, seed)
    changed = tensor.clone()
    bits = changed.view(INTEGER_OF[dtype])
    place = data.draw(st.integers(0, size - 1))
    bit = data.draw(st.integers(0, 8 * tensor.element_size() - 1))
    mask = 1 << bit if bit < 8 * tensor.element_size() - 1 or dtype is torch.uint8 else -(1 << bit)
    bits[place] ^= mask
    assert digest_of(changed) != digest_of(tensor)


@given(DTYPES, st.integers(2, 300), st.integers(0, 1000), st.data())
@settings(max_examples=150)
def test_two_swapped_elements_change_the_digest(dtype: torch.dtype, size: int, seed: int, data: Any) -> None:
    tensor = random_tensor(dtype, size, seed)
    one, other = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True))
    swapped = tensor.clone()
    swapped[one], swapped[other] = tensor[other], tensor[one]
    assert (digest_of(swapped) == digest_of(tensor)) == bool(tensor[one] == tensor[other])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_changed_signs_change_the_digest(dtype: torch.dtype) -> None:
    """In float64 the sign is the highest bit: a sum of products modulo 2^64 loses it wherever two of them change."""
    tensor = torch.arange(1, 9, dtype=dtype)
    assert digest_of(-tensor) != digest_of(tensor)
    assert digest_of(torch.tensor([1, -1], dtype=dtype)) != digest_of(torch.tensor([-1, 1], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_of_two_far_apart_may_not_be_swapped(dtype: torch.dtype) -> None:
    """Their bits differ in the exponent only, so that all information sits in the high bits."""
    tensor = torch.ones(3 * 4096, dtype=dtype)
    tensor[0] = 2
    moved = torch.ones(3 * 4096, dtype=dtype)
    moved[2 * 4096] = 2
    assert digest_of(moved) != digest_of(tensor)


def test_moved_rows_change_the_digest() -> None:
    tensor = random_tensor(torch.float32, 60, 0).reshape(10, 6)
    assert digest_of(tensor.roll(1, 0)) != digest_of(tensor)
    assert digest_of(tensor.flip(0)) != digest_of(tensor)


def test_shape_and_type_are_part_of_the_digest() -> None:
    tensor = torch.arange(12, dtype=torch.int32)
    others = [
        tensor.reshape(3, 4),
        tensor.reshape(4, 3),
        tensor.reshape(12, 1),
        tensor.view(torch.float32),
        tensor[:11],
    ]
    digests = {digest_of(other) for other in (tensor, *others)}
    assert len(digests) == len(others) + 1


def test_equal_values_have_equal_digests_however_they_are_stored() -> None:
    tensor = random_tensor(torch.float32, 12, 3).reshape(3, 4)
    assert digest_of(tensor.t().contiguous().t()) == digest_of(tensor)
    assert digest_of(torch.ones(1, 4).expand(3, 4)) == digest_of(torch.ones(3, 4))
    complex_pair = torch.tensor([1 + 2j])
    assert digest_of(complex_pair.conj()) == digest_of(complex_pair.conj().resolve_conj())
    assert digest_of(complex_pair.conj().imag) == digest_of(torch.tensor([-2.0]))


def test_nan_equals_itself_and_zero_does_not_equal_minus_zero() -> None:
    assert digest_of(torch.tensor([math.nan])) == digest_of(torch.tensor([math.nan]))
    assert digest_of(torch.tensor([0.0])) != digest_of(torch.tensor([-0.0]))


@pytest.mark.parametrize("hash_of", [digest_of, identity_of])
def test_what_cannot_be_read_here_hashes_to_zero_and_nothing_else_does(hash_of: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        unreadable = [
            torch.ones(3, device="meta"),
            torch.eye(3).to_sparse(),
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        ]
    assert [hash_of(tensor) for tensor in unreadable] == [0, 0, 0]
    assert all(hash_of(tensor) > 0 for tensor in (torch.zeros(0), torch.zeros(()), torch.zeros(5), torch.tensor(True)))


def test_another_process_computes_the_same_hashes(torch_server: Any, tmp_path: Path) -> None:
    """Python's own hash of strings differs from process to process."""
    script = tmp_path / "hashes.py"
    script.write_text(
        "import json, torch\n"
        "from neuraldbg.capture.torch.stats import digest_of, identity_of\n"
        "tensors = [torch.arange(5.0), torch.eye(3, dtype=torch.bfloat16), torch.arange(4000)]\n"
        "print(json.dumps([[digest_of(t), identity_of(t)] for t in tensors]))\n"
    )
    here = [torch.arange(5.0), torch.eye(3, dtype=torch.bfloat16), torch.arange(4000)]
    result = torch_server.python(script, env={"PYTHONHASHSEED": "7"})
    assert json.loads(result.stdout) == [[digest_of(t), identity_of(t)] for t in here]


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_batch_is_recognised_when_it_comes_again() -> None:
    batch = torch.randn(64, 3, 32, 32)
    assert identity_of(batch.clone()) == identity_of(batch)


@given(st.integers(0, 500))
@settings(max_examples=30)
def test_other_batches_have_other_identities(seed: int) -> None:
    one, other = random_tensor(torch.float32, 5000, seed), random_tensor(torch.float32, 5000, seed + 1)
    assert identity_of(one) != identity_of(other)
    assert identity_of(one.reshape(50, 100)) != identity_of(one)


@given(st.integers(1, 1024), st.data())
@settings(max_examples=60)
def test_a_small_batch_is_compared_in_full(size: int, data: Any) -> None:
    batch = torch.arange(size)
    changed = batch.clone()
    changed[data.draw(st.integers(0, size - 1))] += 1
    assert identity_of(changed) != identity_of(batch)
