"""What users do with watched models and tensors: save, copy, trace, transform. All of it works as if nobody watched."""

from __future__ import annotations

import copy
import io
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from watching import calls, net, train, watching

from neuraldbg.records import Call


def test_an_output_can_be_saved_without_a_warning(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        out = model(torch.ones(2, 4))
        torch.save(out, io.BytesIO())
        torch.save({"out": out, "model": model.state_dict()}, io.BytesIO())


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_of_a_watched_model_holds_nothing_of_ours(tmp_path: Path, way: str) -> None:
    model = net()
    with watching(tmp_path):
        train(model, 2)
        if way == "deepcopy":
            twin = copy.deepcopy(model)
            assert all(not module._forward_hooks and not module._forward_pre_hooks for module in twin.modules())
            assert all(not parameter._backward_hooks for parameter in twin.parameters())
            data = pickle.dumps(twin)
        elif way == "pickle":
            data = pickle.dumps(model)
        else:
            buffer = io.BytesIO()
            torch.save(model, buffer)
            data = buffer.getvalue()
    assert b"neuraldbg" not in data


def test_a_transformer_keeps_its_fast_path(tmp_path: Path) -> None:
    """Hooks on its modules would make it leave the fused inference kernel, which changes the last bits."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(3, 7, 16)
    with torch.no_grad():
        plain = layer(x)
        with watching(tmp_path):
            watched = layer(x)
    assert torch.equal(watched, plain)


def test_a_transformer_with_padding_is_watched_to_the_end(tmp_path: Path) -> None:
    """Eval mode and a padding mask: torch hands nested tensors from layer to layer."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x, padding = torch.randn(3, 7, 16), torch.zeros(3, 7, dtype=torch.bool)
    padding[0, 4:] = True
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, about nested tensors
        plain = model(x, src_key_padding_mask=padding)
        with watching(tmp_path, strict=False) as capture:
            watched = model(x, src_key_padding_mask=padding)
            assert capture.core.guard.broken == {}
    assert torch.equal(watched, plain)


TRANSFORMS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "vmap": lambda model, x: torch.vmap(model)(x),
    "per-sample gradients": lambda model, x: torch.vmap(torch.func.grad(lambda one: model(one).sum()))(x),
    "functional_call": lambda model, x: torch.func.functional_call(model, dict(model.named_parameters()), (x,)),
    "fx": lambda model, x: torch.fx.symbolic_trace(model)(x),
    "export": lambda model, x: torch.export.export(model, (x,)).module()(x),
    "saved tensor hooks": lambda model, x: _with_saved_tensors_on_cpu(model, x),
}


def _with_saved_tensors_on_cpu(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return model(x)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformed_models_give_the_same_and_break_nothing(tmp_path: Path, name: str) -> None:
    model, x = net(), torch.randn(5, 4)
    plain = TRANSFORMS[name](model, x)
    with watching(tmp_path, strict=False) as capture:
        assert torch.equal(TRANSFORMS[name](model, x), plain)
        train(model, 2)
        assert capture.core.guard.broken == {}
    assert calls(tmp_path).count(Call.STEP) == 2


def test_a_traced_model_has_the_same_graph(tmp_path: Path) -> None:
    """torch.jit.trace writes down every operation it sees: ours must not be among them, nor make it warn."""
    model, x = net(), torch.randn(5, 4)

    def trace() -> tuple[str, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            traced = torch.jit.trace(model, (x,), check_trace=False)
        graph = re.sub(
            r"___torch_mangle_\d+\.", "", str(traced.inlined_graph)
        )  # numbered by how many were traced before
        return graph, [str(w.message) for w in caught if "deprecated" not in str(w.message)]

    plain = trace()
    with watching(tmp_path):
        watched = trace()
    assert watched == plain
