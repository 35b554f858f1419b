"""Modules and parameters of a model: those that torch names, in its order, as the model is now."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.torch import members

BY_C = ("modules_in", "named_modules_in", "held_in", "usual")
BY = ["python", pytest.param("c", marks=pytest.mark.skipif(frameless.usual is None, reason="built without it"))]


@pytest.fixture(autouse=True, params=BY)
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        for part in BY_C:
            monkeypatch.setattr(frameless, part, None)


class Sharing(nn.Module):
    """One module in two places, one parameter in two modules, a place that is empty, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.ModuleDict({"norm": nn.BatchNorm1d(4), "again": self.first})
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight
        self.empty = None
        self.register_parameter("nothing", None)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.zeros(2))


class Adapter(nn.Module):
    """Names only a part of its parameters, as adapters on a frozen model do."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.added = nn.Linear(2, 2), nn.Linear(2, 2)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.added.named_parameters(*args, **kwargs)


class Secretive(nn.Module):
    """Does not tell what is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(2, 2)

    def named_modules(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Module]]:  # type: ignore[override]
        yield "", self


def patched() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    last = model[1]
    model.parameters = lambda recurse=True: last.parameters(recurse)  # type: ignore[method-assign]
    return model


class Listing(nn.Module):
    """Keeps its parts in an ordered dict, as those of older versions of torch do."""

    def __init__(self) -> None:
        super().__init__()
        self._modules: Any = OrderedDict(one=nn.Linear(2, 2), two=nn.ReLU(), three=Sharing())


class Equal(nn.Linear):
    """All of them are one, to whoever compares them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 1


def renamed() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    inner: Any = model[1]
    inner.named_modules = lambda *_, **__: iter([("", inner)])
    return model


MODELS = {
    "one layer": lambda: nn.Linear(2, 3),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.LSTM(2, 3, 2), nn.BatchNorm1d(3)),
    "shared": Sharing,
    "class with a way of its own": Adapter,
    "object with a way of its own": patched,
    "part with a way of its own": lambda: nn.Sequential(nn.Linear(2, 2), Secretive(), nn.Linear(2, 2)),
    "object inside with a way of its own": renamed,
    "parts in an ordered dict": Listing,
    "parts that are equal": lambda: nn.Sequential(Equal(2, 2), nn.ReLU(), Equal(3, 3)),
    "dots in a name": lambda: nn.Sequential(nn.ParameterDict({"a": torch.ones(2)}), nn.ParameterList([torch.ones(1)])),
    "empty": nn.Module,
}


def same(found: list[Any], expected: Any) -> bool:
    theirs = list(expected)
    pairs = zip(found, theirs, strict=False)
    return len(found) == len(theirs) and all(one is other or alike(one, other) for one, other in pairs)


def alike(one: Any, other: Any) -> bool:
    return isinstance(one, tuple) and one[0] == other[0] and one[1] is other[1]


def check(model: nn.Module) -> None:
    assert same(members.named_modules_of(model), model.named_modules())
    assert same(members.modules_of(model), model.modules())
    assert same(members.parameters_of(model), model.parameters())
    assert same(members.named_parameters_of(model), model.named_parameters())
    assert same(members.every_named_parameter(model), model.named_parameters(remove_duplicate=False))
    assert same(members.named_buffers_of(model), model.named_buffers())
    for module in model.modules():
        assert same(members.own_parameters(module), module.parameters(recurse=False))
        if module._parameters:
            assert same(members.own_named_parameters(module), module.named_parameters(recurse=False))


@pytest.mark.parametrize("of", MODELS)
def test_they_are_those_that_torch_names(of: str) -> None:
    check(MODELS[of]())


def test_what_changes_between_two_looks_is_seen() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    check(model)
    model[0].weight = nn.Parameter(torch.zeros(2, 2))
    check(model)
    model.append(Sharing())
    check(model)
    model[1] = nn.Identity()
    check(model)
    del model[2].first
    check(model)
    kept: list[Tensor] = members.parameters_of(model)
    assert kept[0] is model[0].weight


def test_a_module_inside_of_itself_ends_as_it_does_for_torch() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].parent = model
    with pytest.raises(RecursionError):
        members.every_named_parameter(model)
    assert members.named_modules_of(model) == list(model.named_modules())


def test_c_says_what_it_does_not_take() -> None:
    parts: Any = frameless
    if parts.usual is None:
        pytest.skip("this is the turn of Python")
    wrong = (lambda: parts.modules_in(1), lambda: parts.held_in((), "_buffers", True), lambda: parts.usual(1, (), 1))
    for call in wrong:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(AttributeError):
        parts.modules_in(object(), nn.Module.named_modules)
