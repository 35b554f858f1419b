"""Histograms of a training: true counts, seldom enough, and nothing of the training changes for them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quick_layers import Odd, by_python, nothing_was_compiled, seen_by_c, table  # noqa: F401
from torch import Tensor, nn
from watching import net, trace_of, train, watching

from neuraldbg.capture.kernels import host, twin
from neuraldbg.capture.kernels.elements import Element
from neuraldbg.capture.staging import HISTOGRAMS_LIMIT, LIMIT, Staging
from neuraldbg.capture.torch.evidence.histograms import (
    GROWTH,
    LEAST_GAP,
    PIECE,
    PIECES,
    Histograms,
    _by_kernel,
    octaves_of,
)
from neuraldbg.records import Kind
from neuraldbg.trace.histograms import histograms
from neuraldbg.trace.tables import HISTOGRAMS, KIND_CODE, LOWEST_OCTAVE

KINDS = (Kind.ACTIVATION, Kind.GRADIENT, Kind.PARAMETER)


def counted(tensor: Tensor) -> tuple[int, int, int, int, dict[int, int]]:
    """Values, looked at, zeros, not finite, and the rest by the power of two below their magnitude."""
    found = octaves_of(tensor)
    assert found is not None
    bins = np.frombuffer(found[4], "<u2")
    return *found[:4], {LOWEST_OCTAVE + int(at): int(bins[at]) for at in np.flatnonzero(bins)}


def test_values_are_counted_by_the_power_of_two_below_their_magnitude() -> None:
    given = torch.tensor([0.0, 1.0, -1.5, 2.0, 0.25, 1e-30, 1e30, torch.nan, -torch.inf])
    assert counted(given) == (9, 9, 1, 2, {-40: 1, -2: 1, 0: 2, 1: 1, 23: 1})


@pytest.mark.parametrize("of", ["in one piece", "transposed", "half", "sparse"])
def test_every_sort_of_tensor_is_counted_alike(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(24, 32)
    made: dict[str, Any] = {
        "in one piece": values, "transposed": values.T[::2], "half": values.half(), "sparse": values.to_sparse()
    }  # fmt: skip
    tensor = made[of]
    dense = (tensor.to_dense() if of == "sparse" else tensor).float().contiguous().numpy().reshape(-1)
    expected = twin.histogram(dense).astype("<u2").tobytes()
    assert octaves_of(tensor) == (tensor.numel(), dense.size, 0, 0, expected)
    monkeypatch.setattr(host, "fused", None)  # an installation without a compiler
    assert octaves_of(tensor) == (tensor.numel(), dense.size, 0, 0, expected)


@pytest.mark.skipif(host.octaves is None, reason="built without the part in C")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("size", [1, PIECE, PIECE * PIECES, PIECE * PIECES + 1, 70_001])
def test_one_call_of_c_counts_what_one_for_each_piece_does(size: int, kind: torch.dtype) -> None:
    values = torch.randn(size) * 10.0 ** torch.randint(-9, 9, (size,))
    values[::7], values[3::11], values[5::13] = 0.0, torch.nan, torch.inf
    tensor = values.nan_to_num(2.0, 3.0).to(kind) if not kind.is_floating_point else values.to(kind)
    span = host.span_of(tensor)
    assert span is not None
    assert host.octaves(tensor, PIECE, PIECES) == _by_kernel(*span)


@pytest.mark.skipif(host.octaves is None, reason="built without the part in C")
@given(st.integers(0, 9000), st.integers(1, 5000), st.integers(1, 13), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60)
def test_every_instruction_set_counts_as_the_twin_does(size: int, piece: int, most: int, seed: int, wide: bool) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, 8 * size, dtype=np.uint8)  # any bits: NaN and Inf among them
    raw.reshape(size, 8)[::5] = 0
    tensor = torch.from_numpy(raw.view(np.float64 if wide else np.float32))
    count = tensor.numel()
    chosen = [slice(0, count)]
    if count > piece * most:
        chosen = [slice(at, at + piece) for at in (i * (count - piece) // max(1, most - 1) for i in range(most))]
    seen = np.concatenate([tensor.numpy()[part] for part in chosen])
    zeros, bad = int((seen == 0).sum()), int((~np.isfinite(seen)).sum())
    expected = (count, seen.size, zeros, bad, twin.histogram(seen).astype("<u2").tobytes()) if count else None
    for number in range(len(host.fused.INSTRUCTION_SETS)):
        assert host.octaves(tensor, piece, most, (number + 1) << 8) == expected


def test_of_a_large_tensor_values_from_its_beginning_to_its_end_are_looked_at() -> None:
    large = torch.ones(1_000_000)
    large[:PIECE], large[-PIECE:] = 4.0, 16.0
    assert counted(large) == (1_000_000, PIECE * PIECES, 0, 0, {0: PIECE * (PIECES - 2), 2: PIECE, 4: PIECE})


def test_what_holds_no_values_here_has_no_histogram() -> None:
    assert octaves_of(torch.empty(0)) is None
    assert octaves_of(torch.empty(4, device="meta")) is None


def test_a_training_has_histograms_of_activations_gradients_and_parameters(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        train(model, 40)
    with trace_of(tmp_path) as trace:
        assert histograms(trace, "2", Kind.PARAMETER).steps.tolist() == [0, 8, 16, 24, 38]
        for kind in KINDS:
            found = histograms(trace, "2", kind)
            assert found.steps.tolist()[:3] == [0, 8, 16]
            assert (np.diff(found.steps) >= 8).all()
            accounted = found.octaves.sum(axis=1) + found.zero_count + found.bad_count
            assert accounted.tolist() == found.looked_at.tolist() == found.count.tolist()
        assert histograms(trace, "2", Kind.PARAMETER).tensor == "2.weight"
        assert histograms(trace, "2", Kind.ACTIVATION).tensor == "2"
        assert len(histograms(trace, "2", Kind.ACTIVATION, (9, 24)).steps) == 2


class Branched(nn.Module):
    """A layer that is run twice, a gradient that is one value spread out, an output above all pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.large, self.last = nn.Linear(4, 4), nn.Linear(4, PIECE * PIECES), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.twice(self.twice(x).relu())
        out: Tensor = self.last(hidden) + self.large(hidden).sum(-1, keepdim=True)
        return out


@seen_by_c
@pytest.mark.usefixtures("nothing_was_compiled")
@pytest.mark.parametrize("make", [net, Odd, Branched])
def test_c_counts_what_python_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    torch.manual_seed(1)
    first, told = make(), []
    watched = Histograms._layer_run
    monkeypatch.setattr(
        Histograms, "_layer_run", lambda mine, *given: (told.append(given[1]), watched(mine, *given))[1]
    )
    rows, asked = [], []
    for folder in ("c", "python"):
        network = copy.deepcopy(first)
        torch.manual_seed(2)
        with watching(tmp_path / folder) as capture:
            train(network, 20)
            assert capture.passes.quick.c.error is None
        asked.append({layer.path for layer in told})
        told.clear()
        found = [row for step in range(20) for row in table(tmp_path / folder, "histograms", step)]
        rows.append([{name: row[name] for name in row if name not in ("seq", "wall_ns", "site")} for row in found])
        by_python(monkeypatch)
    assert rows[0] == rows[1]
    assert {row["kind"] for row in rows[0]} == {KIND_CODE[kind] for kind in KINDS}
    assert asked[0] <= {"", "rnn"}, "Python was told of what C had counted"
    assert asked[1] > asked[0]


@seen_by_c
def test_c_drops_and_counts_what_nobody_takes() -> None:
    counts = iter(range(10_000))
    kinds = [getattr(torch, element.name, None) for element in Element]
    given = (counts.__next__, Tensor, nn.Parameter, torch.strided, lambda: 0, kinds)
    layers, due = host.fused.Layers(*given), {7: 1}
    layers.count(object(), object(), ({}, {}, due), (PIECE, PIECES, LEAST_GAP, GROWTH))
    parameters = [(site, torch.ones(2)) for site in range(HISTOGRAMS_LIMIT + 3)]
    assert layers.count_parameters(0, [*parameters, (-1, torch.ones(4)[::2])])[0][0] == -1
    _, _, rows, _, _, lost = layers.drain()
    assert (len(rows), lost) == (HISTOGRAMS_LIMIT * HISTOGRAMS.itemsize, 2)
    assert (due[7], due[8], -1 in due) == (1, LEAST_GAP, False)
    layers.count()
    assert layers.count_parameters(10**6, parameters) == []
    assert len(layers.drain()[2]) == 0


def test_they_become_rarer_as_the_run_goes_on(tmp_path: Path) -> None:
    with watching(tmp_path) as capture:
        model = net()
        capture.core.recorder.step = 16_000
        train(model, 3)
        capture.core.recorder.step = 16_999
        train(model, 3)
        capture.core.recorder.step = 17_000
        train(model, 1)
    with trace_of(tmp_path) as trace:
        steps = histograms(trace, "2", Kind.ACTIVATION).steps.tolist()
    assert steps == [16_000, 17_000]


def test_the_losses_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    bare = train(net(), 20)
    with watching(tmp_path):
        torch.manual_seed(1)
        watched = train(net(), 20)
    assert watched == bare


def test_evaluation_and_steps_that_are_not_measured_leave_none(tmp_path: Path) -> None:
    with watching(tmp_path, budget=0.0):
        train(net(), 3)
        with torch.no_grad():
            net()(torch.randn(2, 4))
    with trace_of(tmp_path) as trace:
        assert len(trace.table("histograms")["step"]) == 0


def test_where_the_flush_thread_hangs_histograms_are_dropped_long_before_statistics() -> None:
    staging = Staging()
    for _ in range(HISTOGRAMS_LIMIT + 5):
        staging.histograms(())
        staging.stats(())
    assert (staging.dropped["histograms"], staging.dropped["stats"]) == (5, 0)
    assert HISTOGRAMS_LIMIT < LIMIT


def test_saved_states_are_noted_and_other_files_are_not(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())

    def after(step: int) -> None:
        if step == 1:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "both.pt")
            torch.save(model, tmp_path / "whole.pt")
            torch.save(torch.ones(3), tmp_path / "tensor.pt")
            torch.save({"losses": [1.0, 2.0]}, tmp_path / "losses.pt")

    original = torch.save
    with watching(tmp_path):
        train(model, 3, after)
    assert torch.save is original
    assert isinstance(torch.load(tmp_path / "both.pt")["model"]["0.weight"], Tensor)
    with trace_of(tmp_path) as trace:
        saved = trace.facts("checkpoint_saved")
    assert [(fact["file"], fact["step"]) for fact in saved] == [("both.pt", 2), ("whole.pt", 2)]
