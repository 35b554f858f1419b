"""torch.compile: layers inside of compiled code are measured, results stay the same bit for bit, and what cannot be
seen is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from watching import calls, facts, measured_paths, trace_of, watching

from neuraldbg.capture.torch.compiled_graphs import uses_cuda_graphs
from neuraldbg.records import Call, Kind

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


class Body(nn.Module):
    def __init__(self, *, repeated: bool) -> None:
        super().__init__()
        self.wide, self.act, self.back = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.repeated = repeated

    def inside(self, x: Tensor) -> Tensor:
        return self.back(self.act(self.wide(x)))

    def forward(self, x: Tensor) -> Tensor:
        return x + (checkpoint(self.inside, x, use_reentrant=False) if self.repeated else self.inside(x))


class Net(nn.Module):
    def __init__(self, *, repeated: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.body, self.drop, self.last = Body(repeated=repeated), nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.body(self.norm(self.first(x)))))


LAYERS = {"first", "norm", "body.wide", "body.act", "body.back", "drop", "last"}


def made(**how: Any) -> Net:
    torch.manual_seed(0)
    return Net(**how)


def steps(call: Callable[[Tensor], Tensor], model: nn.Module, count: int = 4, *, half: bool = False) -> list[Any]:
    """Losses and, at the end, all weights and buffers, to be compared bit for bit."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    losses: list[Any] = []
    for _ in range(count):
        x, y = torch.randn(6, 5)[:, :4], torch.randint(0, 3, (6,))  # a part of something larger, as batches often are
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = nn.functional.cross_entropy(call(x).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *(value.clone() for value in model.state_dict().values())]


def identical(one: list[Any], other: list[Any]) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(one, other, strict=True)
    )  # fmt: skip


def bare(backend: str, count: int = 4, *, half: bool = False, **how: Any) -> list[Any]:
    model = made(**how)
    result = steps(torch.compile(model, backend=backend, fullgraph=True), model, count, half=half)
    torch._dynamo.reset()
    return result


def numbers(folder: Path, path: str, kind: str) -> list[tuple[float, ...]]:
    with trace_of(folder) as trace:
        found = trace.history(path, kind=kind)
        return list(zip(found.step.tolist(), found.mean.tolist(), found.l2.tolist(), strict=True))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_every_layer_is_measured_with_the_numbers_it_has_eagerly(tmp_path: Path, backend: str) -> None:
    expected = bare(backend)
    model = made()
    with watching(tmp_path / "compiled"):
        found = steps(torch.compile(model, backend=backend, fullgraph=True), model)
    model = made()
    with watching(tmp_path / "eager"):
        steps(model, model)
    assert identical(found, expected)
    for kind in (Kind.ACTIVATION, Kind.GRADIENT):
        assert measured_paths(tmp_path / "compiled", kind) >= LAYERS
        for path in LAYERS:
            ours, eager = (numbers(tmp_path / name, path, kind.value) for name in ("compiled", "eager"))
            assert len(ours) == 4
            assert ours == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in eager]
    (told,) = facts(tmp_path / "compiled", "compiled")
    assert (told["graphs"], told["recompiles"], told["graph_breaks"]) == (1, 0, 0)
    assert told["rows"] == told["values"] * 4
    assert facts(tmp_path / "compiled", "note") == []


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16 autocast"])
def test_inductor_gives_the_same_bits_watched_or_not(tmp_path: Path, half: bool) -> None:
    with torch._inductor.config.patch(compile_threads=1):
        expected = bare("inductor", half=half)
        model = made()
        with watching(tmp_path):
            found = steps(torch.compile(model, backend="inductor", fullgraph=True), model, half=half)
    assert identical(found, expected)
    (told,) = facts(tmp_path, "compiled")
    assert told["rows"] == told["values"] * 4 * told["measured_graphs"]
    if told["measured_graphs"]:
        assert {"first", "body.wide", "last"} <= measured_paths(tmp_path, Kind.GRADIENT)
    else:
        assert any("rounds differently" in note["text"] for note in facts(tmp_path, "note"))
    if not half:
        assert measured_paths(tmp_path, Kind.ACTIVATION) >= LAYERS


def test_between_full_steps_the_graph_without_taps_runs(tmp_path: Path) -> None:
    expected = bare("aot_eager", 6)
    model = made()
    with watching(tmp_path) as capture:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        turn = iter([True, False] * 10)
        capture.core.budget.pass_in_full = lambda *_: next(turn)  # type: ignore[method-assign]
        found = steps(compiled, model, 6)
    assert identical(found, expected)
    assert [row[0] for row in numbers(tmp_path, "body.act", "activation")] == [0, 2, 4]
    assert [row[0] for row in numbers(tmp_path, "body.act", "gradient")] == [0, 2, 4]
    assert facts(tmp_path, "compiled")[0]["graphs"] == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_layers_under_activation_checkpointing_are_measured_once(tmp_path: Path, backend: str) -> None:
    expected = bare(backend, repeated=True)
    model = made(repeated=True)
    with watching(tmp_path):
        found = steps(torch.compile(model, backend=backend, fullgraph=True), model)
    assert identical(found, expected)
    for path in ("body.wide", "body.act", "body.back"):
        assert [row[0] for row in numbers(tmp_path, path, "activation")] == [0, 1, 2, 3]
        assert [row[0] for row in numbers(tmp_path, path, "gradient")] == [0, 1, 2, 3]


def test_checkpointing_around_a_compiled_region_is_left_alone_and_told(tmp_path: Path) -> None:
    def trained(*, watch: bool) -> list[Any]:
        torch._dynamo.reset()
        model = made()
        body = torch.compile(model.body, backend="aot_eager")

        def call(x: Tensor) -> Tensor:
            return model.last(checkpoint(body, model.first(x), use_reentrant=False))

        if not watch:
            return steps(call, model)
        with watching(tmp_path):
            return steps(call, model)

    assert identical(trained(watch=True), trained(watch=False))
    assert ["activation checkpointing" in note["text"] for note in facts(tmp_path, "note")] == [True]


def test_a_compiled_function_is_a_pass_of_the_model_in_it(tmp_path: Path) -> None:
    model = made()
    with watching(tmp_path):

        @torch.compile(backend="aot_eager", fullgraph=True)
        def scores(x: Tensor) -> Tensor:
            return model(x) * 2

        steps(scores, model)
    assert measured_paths(tmp_path, Kind.ACTIVATION) >= LAYERS
    assert calls(tmp_path).count(Call.PASS) == calls(tmp_path).count(Call.PASS_TRAIN) == 4


def test_module_compile_and_compiled_submodules_are_found(tmp_path: Path) -> None:
    model = made()
    with watching(tmp_path / "whole"):
        model.compile(backend="aot_eager")
        steps(model, model)
    assert measured_paths(tmp_path / "whole", Kind.GRADIENT) >= LAYERS
    torch._dynamo.reset()
    model = made()
    with watching(tmp_path / "part"):
        model.body = torch.compile(model.body, backend="aot_eager")  # type: ignore[assignment]
        steps(model, model)
    assert measured_paths(tmp_path / "part", Kind.ACTIVATION) >= LAYERS
    for path in LAYERS:
        assert len(numbers(tmp_path / "part", path, "activation")) == 4, path


def test_recompiles_and_graph_breaks_are_counted(tmp_path: Path) -> None:
    model = made()

    @torch.compile(backend="aot_eager", dynamic=False)
    def broken(x: Tensor) -> Tensor:
        x = model(x)
        torch._dynamo.graph_break()
        return x * 2

    with watching(tmp_path):
        for size in (6, 5):
            broken(torch.randn(size, 4)).sum().backward()
    (told,) = facts(tmp_path, "compiled")
    assert told["graph_breaks"] >= 1
    assert told["recompiles"] >= 1


class WithItsOwn(nn.Module):
    """Positions are a parameter of the model itself: it has run, and no hook has seen it."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.last = nn.Parameter(torch.zeros(4)), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x + self.positions)
        return out


@pytest.mark.parametrize("function", [False, True])
def test_a_model_with_parameters_of_its_own_is_compiled_once(tmp_path: Path, *, function: bool) -> None:
    with watching(tmp_path):
        model = WithItsOwn()
        what = (lambda x: model(x)) if function else model
        run: Any = torch.compile(what, backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            run(torch.ones(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (fact,) = facts(tmp_path, "compiled")
    assert (fact["graphs"], fact["recompiles"]) == (1, 0)
    assert facts(tmp_path, "note") == []


def test_one_graph_for_all_sizes_stays_one_graph(tmp_path: Path) -> None:
    model = made()
    with watching(tmp_path):
        compiled = torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)
        for size in (6, 5, 7):
            compiled(torch.randn(size, 4)).sum().backward()
    (told,) = facts(tmp_path, "compiled")
    assert (told["graphs"], told["recompiles"]) == (1, 0)
    assert len(numbers(tmp_path, "body.act", "gradient")) == 3


def test_a_model_compiled_before_is_told_about_loudly(tmp_path: Path) -> None:
    model = made()
    compiled = torch.compile(model, backend="aot_eager")
    steps(compiled, model, 1)
    with watching(tmp_path):
        steps(compiled, model)
    (note,) = facts(tmp_path, "note")
    assert note["level"] == "warning"
    assert "compiled before it was watched" in note["text"]


def test_a_backend_that_drops_the_taps_is_told_about(tmp_path: Path) -> None:
    def forgetful(graph: Any, _: Any) -> Any:
        for node in list(graph.graph.nodes):
            if getattr(node.target, "__name__", "") == "_watch":
                graph.graph.erase_node(node)
        graph.recompile()
        return graph.forward

    model = made()
    with watching(tmp_path):
        steps(torch.compile(model, backend=forgetful), model)
    assert any("were asked for and not seen" in note["text"] for note in facts(tmp_path, "note"))


def test_taps_that_would_change_a_bit_are_not_used(tmp_path: Path) -> None:
    def rounding(graph: Any, _: Any) -> Any:
        tapped = any(getattr(node.target, "__name__", "") == "_watch" for node in graph.graph.nodes)

        def run(*args: Any) -> Any:
            outputs = graph.forward(*args)
            return tuple(output * 1.0000002 for output in outputs) if tapped else outputs

        return run

    model = made()
    expected = steps(torch.compile(model, backend=rounding), model)
    torch._dynamo.reset()
    model = made()
    with watching(tmp_path):
        found = steps(torch.compile(model, backend=rounding), model)
    assert identical(found, expected)
    assert any("rounds differently" in note["text"] for note in facts(tmp_path, "note"))
    assert facts(tmp_path, "compiled")[0]["rows"] == 0


def test_cuda_graphs_are_recognised_and_said_once(tmp_path: Path) -> None:
    with FakeTensorMode():
        traced = torch.fx.symbolic_trace(nn.Identity())
        next(iter(traced.graph.nodes)).meta["example_value"] = torch.empty(2, device="cuda")
    graph = SimpleNamespace(compiler_fn=torch._TorchCompileInductorWrapper("reduce-overhead", None, None))
    assert uses_cuda_graphs(graph, traced)
    graph.compiler_fn = torch._TorchCompileInductorWrapper("default", None, None)
    assert not uses_cuda_graphs(graph, traced)


def test_while_a_cuda_graph_is_captured_nothing_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.graph, "__enter__", lambda _: None)  # there is no device to capture on
    monkeypatch.setattr(torch.cuda.graph, "__exit__", lambda *_: None)
    model = made()
    with watching(tmp_path):
        for _ in range(2):
            with object.__new__(torch.cuda.graph):
                model(torch.randn(3, 4))
        assert measured_paths(tmp_path, Kind.ACTIVATION) == set()
        model(torch.randn(3, 4))
    assert measured_paths(tmp_path, Kind.ACTIVATION) >= LAYERS
    assert ["CUDA graph" in note["text"] for note in facts(tmp_path, "note")] == [True]


def test_compiled_code_outlives_the_watching(tmp_path: Path) -> None:
    model = made()
    with watching(tmp_path):
        compiled = torch.compile(model, backend="aot_eager")
        steps(compiled, model)
    assert steps(compiled, model)
    assert torch._dynamo.output_graph.OutputGraph.call_user_compiler.__module__.startswith("torch.")
    assert torch.compile.__module__ == "torch"
