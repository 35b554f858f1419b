"""What a recording reads at every step, by C and by Python: the same, and nothing that it must notice is missed."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from watching import watching

from neuraldbg.capture.kernels import frameless, host
from neuraldbg.capture.torch.recording import hashing, marks
from neuraldbg.capture.torch.recording.hashing import Hasher, HashesInTurn
from neuraldbg.capture.torch.recording.marks import GradientMarks
from neuraldbg.capture.torch.structures import Structure, Structures, named_buffers, surroundings

BY = ["python", pytest.param("c", marks=pytest.mark.skipif(frameless.mark is None, reason="built without it"))]


@pytest.fixture(params=BY)
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        for part in ("mark", "as_marked", "surroundings"):
            monkeypatch.setattr(frameless, part, None)
        monkeypatch.setattr(host, "gradient_hashes", None)
    return str(request.param)


def trained(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Parameters with gradients."""
    torch.manual_seed(0)
    held: list[Tensor] = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for each in held:
        each.grad = torch.randn_like(each)
    return held


# -- marks -------------------------------------------------------------------------------------------------------------


def grad_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "written to": lambda p: grad_of(p).mul_(2),
    "another one": lambda p: setattr(p, "grad", grad_of(p).clone()),
    "taken away": lambda p: setattr(p, "grad", None),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_gradient_that_somebody_has_changed_is_seen(by: str, change: str) -> None:
    held = trained((3, 2), (2,), (4,))
    known = GradientMarks()
    known.take([held[:2], held[2:]])
    assert known.stand(held)
    before = held[1].grad
    CHANGES[change](held[1])
    assert not known.stand(held)
    known.take_again(held)
    assert known.stand(held)
    del before


def test_a_gradient_that_came_to_be_is_seen(by: str) -> None:
    parameter = nn.Parameter(torch.ones(2))
    known = GradientMarks()
    known.take([[parameter]])
    assert known.stand([parameter])
    parameter.grad = torch.ones(2)
    assert not known.stand([parameter])


def test_parameters_that_were_not_among_those_marked_stay_unknown(by: str) -> None:
    held = trained((2,), (3,))
    known = GradientMarks()
    known.take([held[:1]])
    known.take_again(held)
    assert known.stand(held[:1])
    assert not known.stand(held)
    known.take([held[1:]])
    assert not known.stand(held[:1])


@pytest.mark.skipif(frameless.mark is None, reason="built without it")
def test_marks_by_c_are_those_of_python() -> None:
    held = [*trained((2,), (3,)), nn.Parameter(torch.ones(1))]
    one: marks.Marks = {}
    other: marks.Marks = {}
    marks.mark(held, one, False)
    frameless.mark(held, other, False)
    assert one == other
    assert marks.as_marked(held, other)
    with pytest.raises(TypeError):
        frameless.mark(tuple(held), other, False)
    with pytest.raises(AttributeError):
        frameless.mark([object()], {}, False)


# -- hashes ------------------------------------------------------------------------------------------------------------


def test_hashes_of_gradients_are_those_of_each(by: str) -> None:
    held = [*trained((30, 20), (7,)), nn.Parameter(torch.ones(2)), *trained((5, 5))]
    hasher = Hasher()
    found = HashesInTurn(hasher).of_gradients(held)
    assert found == {at: hasher.of_one(grad_of(held[at])) for at in (0, 1, 3)}


def test_each_gradient_has_its_turn(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "HASHED_BYTES", 1000)
    hashes = HashesInTurn(Hasher())
    held = trained(*[(200,)] * 5)
    assert [list(hashes.of_gradients(held)) for _ in range(4)] == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert list(hashes.of_gradients(held[:2])) == [1, 0]  # of fewer, round from where it stood
    assert hashes.of_gradients([]) == {}


@pytest.mark.parametrize("which", ["sparse", "transposed", "half"])
def test_gradients_that_lie_otherwise_are_hashed_too(by: str, which: str) -> None:
    held = trained((6, 4), (3,))
    if which == "sparse":
        table = nn.Embedding(5, 3, sparse=True)
        table(torch.tensor([1, 2])).sum().backward()
        held.append(table.weight)
    elif which == "transposed":
        held[0].grad = torch.randn(4, 6).t()
    else:
        held.append(nn.Parameter(torch.ones(3, dtype=torch.bfloat16)))
        held[-1].grad = torch.ones(3, dtype=torch.bfloat16)
    hasher, hashes = Hasher(), HashesInTurn(Hasher())
    for _ in range(2):
        assert hashes.of_gradients(held) == {at: hasher.of_one(grad_of(each)) for at, each in enumerate(held)}


# -- what lies around a pass -------------------------------------------------------------------------------------------


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 2, bias=False))


def test_flags_and_buffers_are_as_the_model_tells_them(by: str) -> None:
    net, structures = model(), Structures()
    for change in (None, net.eval, lambda: net[1].train(), lambda: net[0].requires_grad_(False)):
        _ = None if change is None else change()
        training, trainable, _ = seen = structures.look(net)
        assert training == tuple(module.training for module in net.modules())
        assert trainable == tuple(p.requires_grad for p in net.parameters())
        named = named_buffers(seen)
        assert list(named) == [name for name, _ in net.named_buffers()]
        assert all(named[name] is buffer for name, buffer in net.named_buffers())


def test_a_model_that_is_built_otherwise_is_noticed(by: str) -> None:
    net = model()
    known = Structure.of(net)
    assert known.look() is not None
    net[2] = nn.Linear(4, 2, bias=False)
    assert known.look() is None
    known = Structure.of(net)
    net.append(nn.Dropout())
    assert known.look() is None
    known = Structure.of(net)
    del net[3]
    assert known.look() is None
    known, structures = Structure.of(net), Structures()
    structures.look(net)
    net[1].register_buffer("later", torch.ones(2))  # no child: it is read anew every time
    seen = known.look()
    assert seen is not None
    assert "1.later" in named_buffers(seen)
    del net
    gc.collect()
    assert known.look() is None


def test_a_shared_buffer_has_its_first_name(by: str) -> None:
    net = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    net[1]._buffers["running_mean"] = net[0].running_mean
    assert list(named_buffers(Structures().look(net))) == [name for name, _ in net.named_buffers()]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_model_is_looked_at_by_python(by: str) -> None:
    net = torch.jit.script(model())
    training, trainable, buffers = Structures().look(net)
    assert len(training) == len(list(net.modules()))
    assert len(trainable) == len(list(net.parameters()))
    assert len(buffers) == len(list(net.buffers()))


@pytest.mark.skipif(frameless.surroundings is None, reason="built without it")
def test_c_says_where_it_is_not_asked_as_it_should_be() -> None:
    net = model()
    known = Structure.of(net)
    assert frameless.surroundings(known.modules, known.children) == surroundings(known.modules, known.children)
    assert frameless.surroundings(known.modules, [*known.children, ("more", 1)]) is False
    with pytest.raises(TypeError):
        frameless.surroundings([("", net)], [])
    with pytest.raises(AttributeError):
        frameless.surroundings([("", weakref.ref(test_a_shared_buffer_has_its_first_name))], [])


class _Hiding(nn.Module):
    """Names fewer modules and buffers than it has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))  # type: ignore[no-any-return]

    def modules(self) -> Iterator[nn.Module]:
        return iter([self, self.head])


@pytest.mark.parametrize("renamed", [False, True])
def test_passes_of_odd_models_can_be_run_again(tmp_path: Path, renamed: bool) -> None:
    model: Any = nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(4), head=nn.Linear(4, 1))) if renamed else _Hiding()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=1e-3)
    with watching(tmp_path) as capture:
        for step in range(4):
            if renamed and step == 2:
                model._modules = {{"norm": "bn"}.get(name, name): child for name, child in model._modules.items()}
            optimizer.zero_grad()
            out = model(torch.randn(8, 4))
            again = capture.passes.current[-1].record.rerun(model, model)
            assert torch.equal(out, again)
            out.mean().backward()
            optimizer.step()


@pytest.mark.skipif(frameless.as_marked is None, reason="built without it")
def test_a_mark_that_is_replaced_while_it_is_compared_is_held() -> None:
    marks: dict[int, tuple[int, int]] = {}

    class Sly:
        @property
        def grad(self) -> None:
            marks[id(self)] = (7, 7)

    sly = Sly()
    marks[id(sly)] = (1, 2)
    assert not frameless.as_marked([sly], marks)
