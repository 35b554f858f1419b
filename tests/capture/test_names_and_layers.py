"""Models and layers go by the user's own names; wrappers, criteria and filters do what one would expect of them."""

from __future__ import annotations

import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from watching import calls, facts, measured_paths, net, trace_of, train, watching

from neuraldbg.errors import UsageError
from neuraldbg.records import Call, Kind, SiteKind


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)])
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


LAYERS = {"embed", "blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1", "head"}


def test_layers_have_the_paths_of_the_model(tmp_path: Path) -> None:
    model = Encoder()
    with watching(tmp_path):
        train(model)
    assert measured_paths(tmp_path, Kind.ACTIVATION) >= LAYERS
    assert measured_paths(tmp_path, Kind.GRADIENT) >= LAYERS | {"blocks.1.0.weight", "head.bias"}
    [found] = facts(tmp_path, "model")
    assert (found["name"], found["class"], found["parameters"]) == ("model", "Encoder", 193)


@pytest.mark.parametrize(
    ("patterns", "seen"),
    [
        (("head",), {"head"}),
        (("blocks.*",), {"blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1"}),
        (("blocks",), {"blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1"}),
        (("ReLU",), {"blocks.0.1", "blocks.1.1"}),
        (("embed", r"^blocks\.1"), {"embed", "blocks.1.0", "blocks.1.1"}),
        (("nothing",), set()),
    ],
)
def test_a_filter_restricts_statistics_to_the_layers_asked_for(
    tmp_path: Path, patterns: tuple[str, ...], seen: set[str]
) -> None:
    model = Encoder()
    with watching(tmp_path, layers=patterns):
        train(model)
    assert measured_paths(tmp_path, Kind.ACTIVATION) & LAYERS == seen
    assert calls(tmp_path).count(Call.STEP) == 3, "the ledger is kept whatever is filtered"


def test_a_bad_filter_is_said_before_anything_is_attached(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no regular expression"), watching(tmp_path, layers=("(",)):
        pass


def test_a_data_parallel_wrapper_is_taken_off(tmp_path: Path) -> None:
    model = Encoder()
    parallel = nn.DataParallel(model)
    with watching(tmp_path):
        train(parallel)
    [found] = facts(tmp_path, "model")
    assert (found["class"], found["wrapper"]) == ("Encoder", "DataParallel")
    assert measured_paths(tmp_path, Kind.ACTIVATION) >= LAYERS
    assert not any(path.startswith("module") for path in measured_paths(tmp_path, Kind.GRADIENT))


def test_behind_a_wrapper_every_pass_is_measured_once(tmp_path: Path) -> None:
    def rows(name: str, wrap: Any) -> list[int]:
        with watching(tmp_path / name):
            train(wrap(Encoder()), 1)
        with trace_of(tmp_path / name) as trace:
            [model] = [site.id for site in trace.sites if site.kind is SiteKind.MODEL]
            return [
                len(trace.table(table, columns=["site"], site=model)["site"]) for table in ("spans", "stats", "calls")
            ]

    assert rows("wrapped", nn.DataParallel) == rows("plain", lambda model: model)


def test_a_compiled_model_gives_the_same_without_a_warning(tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = train(torch.compile(Encoder(), backend="eager"), 3)
    torch._dynamo.reset()
    torch.manual_seed(0)
    with watching(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Encoder()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert train(compiled, 3) == plain
    [found] = facts(tmp_path, "model")
    assert (found["class"], found["wrapper"]) == ("Encoder", "OptimizedModule")
    assert not any("_orig_mod" in path for path in measured_paths(tmp_path, Kind.GRADIENT))
    assert calls(tmp_path).count(Call.STEP) == 3
    torch._dynamo.reset()


def test_criteria_and_metrics_are_no_models(tmp_path: Path) -> None:
    model = net()
    criterion = nn.MSELoss()
    with watching(tmp_path):
        for _ in range(2):
            criterion(model(torch.ones(3, 4)), torch.zeros(3, 1)).backward()
        nn.CosineSimilarity()(torch.ones(3, 4), torch.ones(3, 4))
    assert [fact["name"] for fact in facts(tmp_path, "model")] == ["model"]
    assert calls(tmp_path).count(Call.PASS) == 2


def test_calling_a_part_of_a_model_counts_for_the_model(tmp_path: Path) -> None:
    with watching(tmp_path):
        model = Encoder()
        model.head(torch.ones(2, 8)).sum().backward()
    assert [fact["name"] for fact in facts(tmp_path, "model")] == ["model"]
    assert measured_paths(tmp_path, Kind.ACTIVATION) == {"head"}


def test_two_models_keep_apart_and_keep_their_names(tmp_path: Path) -> None:
    generator, critic = net(), nn.Linear(4, 1)
    with watching(tmp_path):
        train(generator, 2)
        train(critic, 2)
    assert {fact["name"] for fact in facts(tmp_path, "model")} == {"generator", "critic"}


def test_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    with watching(tmp_path):
        for _ in range(3):
            train(net(), 1)
    names = [fact["name"] for fact in facts(tmp_path, "model")]
    assert len(set(names)) == 3
    assert all(name.startswith("model") for name in names)


def test_only_the_model_asked_for_is_watched(tmp_path: Path) -> None:
    mine, other = net(), net()
    with watching(tmp_path, model=mine):
        train(mine, 2)
        train(other, 5)
    assert len(facts(tmp_path, "model")) == 1
    assert calls(tmp_path).count(Call.STEP) == 2
    assert calls(tmp_path).count(Call.PASS) == 2


def test_a_frozen_parameter_has_no_gradient_and_says_so(tmp_path: Path) -> None:
    model = Encoder()
    model.embed.requires_grad_(False)
    with watching(tmp_path):
        train(model)
    assert "embed.weight" not in measured_paths(tmp_path, Kind.GRADIENT)
    assert "head.weight" in measured_paths(tmp_path, Kind.GRADIENT)


def test_training_in_two_threads_is_kept_apart(tmp_path: Path) -> None:
    """Every thread has its own stack of running modules."""
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
            for _ in range(30):
                model(torch.randn(8, 4)).sum().backward()
        except BaseException as error:
            failures.append(error)

    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        with watching(tmp_path) as capture:
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert capture.core.any_backward == 0
    finally:
        sys.setswitchinterval(before)
    assert failures == []
    assert calls(tmp_path).count(Call.PASS) == 60
    assert trace_of(tmp_path).table("spans", ["duration_ns"])["duration_ns"].min() >= 0


@pytest.mark.parametrize("shape", ["shared", "recursive use", "reused"])
def test_a_module_used_twice_is_one_layer(tmp_path: Path, shape: str) -> None:
    shared = nn.Linear(4, 4)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = shared
            self.b = shared if shape == "shared" else nn.Identity()
            self.head = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            return self.head(self.a(x) if shape == "reused" else self.b(x))

    model = Twice()
    with watching(tmp_path):
        train(model, 2)
    with trace_of(tmp_path) as trace:
        paths = [site.path for site in trace.sites if site.kind is SiteKind.MODULE]
    assert paths.count("a") == 1
    assert ("b" in paths) == (shape != "shared")


def test_a_model_that_grows_while_it_is_trained_is_followed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with watching(tmp_path):
        train(nn.Sequential(model, nn.Linear(4, 1)), 1)
        model.append(nn.Tanh())
        model.append(nn.Linear(4, 1))
        train(model, 1)
    assert measured_paths(tmp_path, Kind.ACTIVATION) & {"1", "2"} or measured_paths(tmp_path, Kind.ACTIVATION) & {
        "0.1",
        "0.2",
    }
