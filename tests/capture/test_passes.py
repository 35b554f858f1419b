"""A recorded pass can be run again: the same outputs bit for bit, and nothing else of the process has moved."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.nested import MOST_ITEMS, few_given, tensors
from neuraldbg.capture.torch.passes import CLONE_BYTES, PassRecord, RngState, output_digest


class Chance(nn.Module):
    """Draws from all three generators a forward may use."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.from_numpy(np.random.normal(size=x.shape)).float()
        return self.fc(x) * random.random() + noise + torch.randn_like(x)


class Keywords(nn.Module):
    """Called as Hugging Face models are: keywords only, a dict back."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, *, inputs: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        hidden = nn.functional.dropout(self.fc(inputs), options["p"])
        return {"hidden": hidden, "parts": (hidden.sum(), [hidden.mean()])}


class OwnBuffer(nn.Module):
    """Replaces its buffer in forward instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


X = torch.randn(16, 8, generator=torch.Generator().manual_seed(5))
MODELS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)),
    "batch norm": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)),
    "in-place relu": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True)),
    "python, numpy and torch randomness": Chance,
    "a buffer replaced in forward": OwnBuffer,
    "frozen layers": lambda: nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Dropout(0.2)),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True),
    "recurrent": lambda: nn.LSTM(8, 8, num_layers=2, dropout=0.3),
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Fails when generators, buffers, parameters or training flags differ afterwards."""

    def picture() -> list[Any]:
        rng = RngState.take()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        flags = [module.training for module in model.modules()]
        return [rng.torch_cpu.tolist(), rng.python, [np.asarray(x).tolist() for x in rng.numpy[1:]], state, flags]

    before = picture()
    try:
        yield
    finally:
        after = picture()
        assert after[:3] == before[:3], "generators"
        assert after[4] == before[4], "training flags"
        for name, value in before[3].items():
            assert torch.equal(after[3][name], value), name


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(tensors(one), tensors(other), strict=True))
    return bool(pairs) and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["float32", "autocast bfloat16"])
def test_a_pass_runs_again_bit_for_bit(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # without AVX-512 its LSTM raises
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    model = MODELS[name]()
    autocast = torch.autocast("cpu", torch.bfloat16) if "bfloat16" in precision else nullcontext()
    with autocast:
        record = PassRecord.take(model, (X.clone(),), {}, backwards=0)
        first = model(X.clone())
    digest = output_digest(first)
    model(X.clone())  # life goes on: generators and buffers move
    with untouched(model):
        again = record.rerun(model, model)
    assert same(first, again)
    assert output_digest(again) == digest != 0


def test_a_pass_can_be_run_again_more_than_once() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5))
    record = PassRecord.take(model, (X.clone(),), {}, backwards=0)
    first = model(X.clone())
    with untouched(model):
        assert all(same(first, record.rerun(model, model)) for _ in range(3))


def test_an_input_the_model_writes_into_is_given_back_as_it_was() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8))
    mine = X.clone()
    record = PassRecord.take(model, (mine,), {}, backwards=0)
    first = model(mine)
    assert not torch.equal(mine, X)
    assert same(first, record.rerun(model, model))


def test_a_model_called_with_keywords_runs_again() -> None:
    model = Keywords()
    kwargs = {"inputs": X.clone(), "options": {"p": 0.5, "mask": [X.clone()]}}
    record = PassRecord.take(model, (), kwargs, backwards=3)
    first = model(**kwargs)
    with untouched(model):
        again = record.rerun(model, model)
    assert again.keys() == first.keys()
    assert same(first, again)
    assert record.backwards_before == 3


def test_flags_are_those_of_the_recorded_pass() -> None:
    """Trained with one layer frozen in eval mode, then switched to eval as a whole."""
    model = nn.Sequential(nn.BatchNorm1d(8).eval(), nn.Dropout(0.5), nn.BatchNorm1d(8))
    record = PassRecord.take(model, (X,), {}, backwards=0)
    first = model(X)
    model.eval()
    with untouched(model):
        again = record.rerun(model, model)
    assert same(first, again)


@pytest.mark.parametrize("enabled", [True, False])
def test_grad_mode_and_autocast_are_those_of_the_recorded_pass(enabled: bool) -> None:
    model = nn.Linear(8, 8)
    with torch.set_grad_enabled(enabled), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        record = PassRecord.take(model, (X,), {}, backwards=0)
        first = model(X)
    with torch.set_grad_enabled(not enabled), torch.autocast("cpu", torch.bfloat16, enabled=not enabled):
        again = record.rerun(model, model)
        assert torch.is_grad_enabled() != enabled
        assert torch.is_autocast_enabled("cpu") != enabled
    assert again.requires_grad == first.requires_grad == enabled
    assert again.dtype == first.dtype
    assert same(first, again)


def test_parameters_are_the_live_ones() -> None:
    model = nn.Linear(8, 8)
    record = PassRecord.take(model, (X,), {}, backwards=0)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    assert not record.rerun(model, model).any()


def test_gradients_of_a_second_run_are_the_same() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    record = PassRecord.take(model, (X,), {}, backwards=0)
    first = torch.autograd.grad(model(X).square().sum(), list(model.parameters()))
    again = torch.autograd.grad(record.rerun(model, model).square().sum(), list(model.parameters()))
    assert same(first, again)


def test_a_second_run_between_forward_and_backward_does_not_break_the_backward() -> None:
    """Writing into a buffer that the user's graph has saved would: torch counts such writes."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).eval(), nn.BatchNorm1d(8))
    record = PassRecord.take(model, (X,), {}, backwards=0)
    loss = model(X).square().sum()
    record.rerun(model, model)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_small_inputs_are_copied_and_stay_intact() -> None:
    model, mine = nn.Linear(8, 8), X.clone()
    record = PassRecord.take(model, (mine,), {}, backwards=0)
    first = model(mine)
    mine.zero_()
    assert record.intact
    assert same(first, record.rerun(model, model))


@pytest.mark.parametrize("where", ["argument", "keyword", "nested"])
def test_large_inputs_are_kept_by_reference_and_a_write_is_noticed(where: str) -> None:
    large = torch.zeros(CLONE_BYTES // 4 + 1)
    args = {"argument": (large,), "nested": ([{"x": (large,)}],)}.get(where, ())
    kwargs = {"x": large} if where == "keyword" else {}
    record = PassRecord.take(nn.Identity(), args, kwargs, backwards=0)
    assert record.intact
    large[7] = 1.0
    assert not record.intact


def test_a_large_input_that_cannot_be_checked_is_never_called_intact() -> None:
    """Inference tensors have no version counter: a write to them goes unseen."""
    with torch.inference_mode():
        large = torch.zeros(CLONE_BYTES // 4 + 1)
    record = PassRecord.take(nn.Identity(), (large,), {}, backwards=0)
    with torch.inference_mode():
        large[0] = 1.0
    assert not record.intact


def test_an_input_that_needs_a_gradient_holds_no_graph() -> None:
    leaf = X.clone().requires_grad_()
    record = PassRecord.take(nn.Identity(), (leaf * 2,), {}, backwards=0)
    kept = record.args[0]
    assert kept.tensor.grad_fn is None
    assert record.intact


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Batch:
    x: Tensor


@pytest.mark.parametrize("shape", ["named tuple", "list in dict", "none and numbers", "sparse", "dataclass"])
def test_inputs_may_come_in_any_container(shape: str) -> None:
    inputs = {
        "named tuple": Pair(X, X + 1),
        "list in dict": {"a": [X, (X,)]},
        "none and numbers": (None, 3, "text", X),
        "sparse": X.to_sparse(),
        "dataclass": Batch(X),
    }[shape]
    seen: list[Any] = []

    class Taker(nn.Module):
        def forward(self, given: Any) -> Tensor:
            seen.append(given)
            return X * 2

    model = Taker()
    record = PassRecord.take(model, (inputs,), {}, backwards=0)
    assert same(model(inputs), record.rerun(model, model))
    assert [type(one) for one in seen] == [type(inputs)] * 2
    if shape != "sparse":
        assert same(seen[0], seen[1])


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_an_exception_in_a_second_run_restores_everything() -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)
            self.broken = False

        def forward(self, x: Tensor) -> Tensor:
            out = self.norm(x) + torch.rand(1) + random.random()
            if self.broken:
                raise ValueError("no")
            return out

    model = Fragile()
    record = PassRecord.take(model, (X,), {}, backwards=0)
    model(X)
    model.eval()
    model.broken = True
    with untouched(model), pytest.raises(ValueError, match="no"):
        record.rerun(model, model)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_a_model_that_has_grown_since_says_so_and_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    record = PassRecord.take(model, (X,), {}, backwards=0)
    model.append(nn.BatchNorm1d(8))
    model.eval()
    with untouched(model), pytest.raises(Exception):  # noqa: B017
        record.rerun(model, model)


def test_the_hash_of_outputs_knows_their_order_and_number() -> None:
    a, b = torch.ones(3), torch.zeros(3)
    digests = {output_digest(outputs) for outputs in ((a, b), (b, a), (a,), (a, b, b), {"x": a, "y": [b, b, b]})}
    assert len(digests) == 5
    assert output_digest((a, [b])) == output_digest({"any": (a, b)})
    assert output_digest((a, a.to_sparse())) == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "few"),
    [
        ((X,), {}, True),
        ((), {}, True),
        ((), {"rows": [1] * (MOST_ITEMS + 1)}, False),
        ((X,), {"rows": [1] * (MOST_ITEMS + 1)}, False),
        (([X] * 8,), {"rows": [1] * 8}, True),
        ((X,) * (MOST_ITEMS + 1), {}, False),
    ],
)
def test_few_items_are_told_from_many_however_they_are_given(args: Any, kwargs: Any, *, few: bool) -> None:
    for entered in (args, tuple(tensors((args, kwargs)))):
        if all(isinstance(one, Tensor) for one in entered):
            assert few_given(entered, args, kwargs) is few
