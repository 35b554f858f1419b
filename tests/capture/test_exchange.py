"""Where a tensor lies: what torch says at once is what it says when it is asked one by one."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.kernels.host import _KINDS

if frameless.Reader is None:
    pytest.skip("the C extension was not built", allow_module_level=True)
AT_ONCE = hasattr(Tensor, "__dlpack_c_exchange_api__")
EVERY = 2**40


class OfOlderTorch:
    """In the place of a tensor type that has no table of functions."""


def readers() -> tuple[Any, Any]:
    """One that asks at once, where torch has the table, and one that asks one by one."""
    return (
        frameless.Reader(Tensor, nn.Parameter, torch.strided, _KINDS),
        frameless.Reader(OfOlderTorch, Tensor, torch.strided, _KINDS),
    )


def same(tensor: Tensor) -> bool:
    """Whether both say the same of it, the row to the last bit."""
    at_once, one_by_one = readers()
    rows = [repr(each.measured(tensor)) for each in (at_once, one_by_one)]
    hashes = [each.hashed(tensor, EVERY) for each in (at_once, one_by_one)]
    return rows[0] == rows[1] and hashes[0] == hashes[1]


def quietly(make: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """What torch warns about, as not finished or no longer wanted."""

    def made() -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return made


def _freed() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def _inferred() -> Tensor:
    with torch.inference_mode():
        return torch.ones(3)


PLAIN: dict[str, Callable[[], Tensor]] = {
    **{str(kind): lambda kind=kind: torch.ones(3).to(kind) for kind in _KINDS if kind is not None},
    "empty": lambda: torch.zeros(0, 3),
    "no dimension": lambda: torch.tensor(3.0),
    "offset": lambda: torch.arange(9.0)[4:],
    "strides of one": lambda: torch.ones(1, 5, 1).transpose(0, 2),
    "requires a gradient": lambda: torch.ones(3, requires_grad=True),
    "parameter": lambda: nn.Parameter(torch.ones(3)).detach(),
    "of inference": _inferred,
}
OTHER: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.ones(3, 4).t(),
    "shown several times": lambda: torch.ones(1).expand(3),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "signs turned": lambda: torch._neg_view(torch.ones(3)),
    "imaginary part": lambda: torch.ones(1, dtype=torch.complex64).conj().imag,
    "less than a byte": lambda: torch.arange(8, dtype=torch.uint8).view(torch.int4),
    "another float8": lambda: torch.ones(3).to(torch.float8_e4m3fnuz),
    "quantized": quietly(lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)),
    "sparse": lambda: torch.ones(3).to_sparse(),
    "compressed": quietly(lambda: torch.ones(3, 3).to_sparse_csr()),
    "nested": quietly(lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    "nowhere": lambda: torch.ones(3, device="meta"),
    "freed": _freed,
}


@pytest.mark.parametrize("made", [pytest.param(made, id=name) for name, made in PLAIN.items()])
def test_a_plain_tensor_is_read_the_same_way(made: Callable[[], Tensor]) -> None:
    tensor = made()
    assert readers()[0].measured(tensor) is not None
    assert same(tensor)


@pytest.mark.parametrize("made", [pytest.param(made, id=name) for name, made in OTHER.items()])
def test_another_tensor_is_left_to_others_by_both(made: Callable[[], Tensor]) -> None:
    try:
        tensor = made()
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        pytest.skip(f"this torch does not make it: {error}")
    assert readers()[0].measured(tensor) is None
    assert same(tensor)


@given(st.lists(st.integers(0, 3), max_size=4), st.randoms(use_true_random=False))
def test_whether_elements_lie_in_order_is_told_as_torch_does(shape: list[int], chance: Any) -> None:
    tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    order = list(range(len(shape)))
    chance.shuffle(order)
    seen = tensor.permute(order) if order else tensor
    assert same(seen)
    assert (readers()[0].measured(seen) is not None) == seen.is_contiguous()


@pytest.mark.parametrize("transform", [torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_what_stands_in_for_a_tensor_in_a_transform_is_left_to_others(transform: Callable[..., Any]) -> None:
    told: list[bool] = []
    reader = readers()[0]

    def look(value: Tensor) -> Tensor:
        told.append(reader.measured(value) is None)
        return value

    transform(look)(torch.ones(3, 4))
    assert told == [True]


@pytest.mark.skipif(not AT_ONCE, reason="this torch is asked one by one in any case")
@pytest.mark.parametrize(
    "made", [OTHER["sparse"], OTHER["nowhere"], OTHER["nested"]], ids=["sparse", "nowhere", "nested"]
)
def test_what_torch_refuses_is_asked_about_at_once_a_few_times_only(made: Callable[[], Tensor]) -> None:
    """It takes a millisecond to refuse: 15 times a step of a small training with sparse gradients."""
    at_once, one_by_one = readers()
    tensor = made()
    for _ in range(8):
        at_once.measured(tensor)

    def took(reader: Any) -> int:
        best = 10**9
        for _ in range(20):
            began = time.perf_counter_ns()
            reader.measured(tensor)
            best = min(best, time.perf_counter_ns() - began)
        return best

    assert took(at_once) < 10 * took(one_by_one)
    assert at_once.measured(torch.ones(3)) is not None
