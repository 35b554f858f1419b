"""What a layer takes, and what watching takes: right, and bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode
from watching import net, trace_of, watching

from neuraldbg.capture.budget import PASSES_IN_FULL
from neuraldbg.capture.torch.flops import flops_of
from neuraldbg.capture.torch.hooks import RECORDED_BYTES
from neuraldbg.capture.torch.stats import identity_of
from neuraldbg.capture.torch.tree import REBUILT_APART
from neuraldbg.records import Phase
from neuraldbg.trace.tables import PHASE_CODE

LAYERS = [
    (nn.Linear(7, 5), (3, 7)),
    (nn.Linear(7, 5, bias=False), (2, 4, 7)),
    (nn.Conv1d(4, 6, 3, groups=2), (2, 4, 10)),
    (nn.Conv2d(3, 8, (3, 5), stride=2, padding=1), (2, 3, 12, 12)),
    (nn.ConvTranspose2d(100, 64, 4, 1, 0), (1, 100, 1, 1)),
    (nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1), (2, 8, 5, 5)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda value: str(value)[:40])
def test_operations_are_counted_as_torch_counts_them(layer: nn.Module, shape: tuple[int, ...]) -> None:
    entered = torch.randn(shape)
    with FlopCounterMode(display=False) as counter:
        left = layer(entered)
    assert flops_of(layer, entered, left) == counter.get_total_flops()


def test_work_that_shapes_do_not_tell_is_unknown() -> None:
    x = torch.randn(2, 3, 4)
    projected = nn.LSTM(4, 8, proj_size=2, batch_first=True)
    assert flops_of(projected, x, torch.zeros(2, 3, 2)) is None
    assert flops_of(nn.TransformerEncoderLayer(4, 2), x, x) is None


def test_batches_that_differ_only_inside_their_frames_are_told_apart() -> None:
    """Digits on a black ground, tokens behind padding: most elements are equal from one batch to the next."""
    for size in (16, 64, 256):
        seen = set()
        for number in range(20):
            images = torch.zeros(size, 1, 28, 28)
            images[:, :, 10:18, 10:18] = torch.rand(size, 1, 8, 8, generator=torch.Generator().manual_seed(number))
            seen.add(identity_of(images))
        assert len(seen) == 20
    batch = torch.zeros(64, 1, 28, 28)
    changed = batch.clone()
    changed[40, 0, 13, 13] = 1e-3
    assert identity_of(batch) == identity_of(batch.clone()) != identity_of(changed)


def test_the_last_layer_gets_the_time_of_its_own_backward(tmp_path: Path) -> None:
    """The largest layer stands last; its output is also the model's."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2000), nn.Linear(2000, 2000))
    with watching(tmp_path):
        for _ in range(5):
            model(torch.randn(256, 8)).pow(2).mean().backward()
    with trace_of(tmp_path) as trace:
        rows = trace.table("spans")
        backward = rows["phase"] == PHASE_CODE[Phase.BACKWARD]
        spent = {
            path: rows["duration_ns"][backward & (rows["site"] == trace.site(path).id)].sum()
            for path in ("0", "1", "2")
        }
    assert spent["2"] > 2 * spent["1"] > 0


def test_a_long_evaluation_in_a_full_step_is_not_measured_to_its_end(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path, budget=0.01) as capture, torch.no_grad():
        for _ in range(1000):
            model(torch.randn(2, 4))
        assert capture.core.budget.passes == 1000
    with trace_of(tmp_path) as trace:
        measured = set(trace.table("stats", columns=["pass_id"])["pass_id"].tolist())
    assert PASSES_IN_FULL <= len(measured) < 500


def test_a_run_without_updates_still_tells_what_watching_cost(tmp_path: Path) -> None:
    with watching(tmp_path, budget=0.01) as capture, torch.no_grad():
        for _ in range(100):
            net()(torch.randn(2, 4))
        assert capture.core.budget.ratio is None
    with trace_of(tmp_path) as trace:
        assert trace.facts("overhead")[-1]["ratio"] > 0


def test_kept_passes_are_bounded_in_bytes(tmp_path: Path) -> None:
    model = net()
    model.register_buffer("table", torch.zeros(5_000_000))
    with watching(tmp_path) as capture:
        for _ in range(10):
            model(torch.randn(2, 4))
        kept = [one.record_bytes for one in capture.passes.current if one.record is not None]
        assert 0 < sum(kept) <= RECORDED_BYTES
        assert all(one.output_digest for one in capture.passes.current)


def test_a_loop_that_builds_its_model_anew_does_not_fill_the_trace(tmp_path: Path) -> None:
    with watching(tmp_path) as capture:
        for _ in range(40):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        few = len(capture.core.recorder.sites)
    with trace_of(tmp_path) as trace:
        assert len(trace.facts("model")) == REBUILT_APART
        assert len(trace.facts("model_rebuilt")) == 40 - REBUILT_APART
        assert trace.run.steps == 40
    assert few < 100


def test_hooks_of_the_users_own_see_no_call_of_ours(tmp_path: Path) -> None:
    """What being called costs is measured by calling; somebody who listens to every call must not hear that."""
    heard = []
    handle = register_module_forward_hook(lambda module, *_: heard.append(type(module).__name__))
    try:
        with watching(tmp_path):
            net()(torch.randn(2, 4))
    finally:
        handle.remove()
    assert heard == ["Linear", "Tanh", "Linear", "Sequential"]
