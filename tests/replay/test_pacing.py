"""A recording within a budget: the first updates, then a few in a row as often as the share allows; what lies between
is said to be missing, and never made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from replayed_programs import F, batch, mlp
from whatif_command import neural

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.capture.torch.core import RARELY
from neuraldbg.capture.torch.recording import pacing
from neuraldbg.capture.torch.recording.disk import DiskTape
from neuraldbg.capture.torch.recording.pacing import FIRST, WINDOW, Pace
from neuraldbg.capture.torch.recording.spool import FOLDER
from neuraldbg.capture.torch.recording.taking import Recording
from neuraldbg.errors import NotRecorded
from neuraldbg.replay.rebuild import Rebuilder
from neuraldbg.replay.recorded import Objects, Recorded


def kept_share(cost_s: float, step_s: float, share: float, updates: int) -> tuple[float, float]:
    """Of a simulated training: the share of the updates after the first ones that was recorded, and of the time that
    went into it."""
    now = 0.0
    pace = Pace(share, lambda: 0.0, clock=lambda: now)
    recorded, spent = 0, 0.0
    for step in range(updates):
        if not pace.awake and pace.due():
            pace.wake()
        now += step_s
        if pace.awake:
            now += cost_s
            pace.spent(int(cost_s * 1e9))
            recorded += step >= FIRST
            spent += cost_s if step >= FIRST else 0.0
            pace.update_done()
    return recorded / (updates - FIRST), spent / (step_s * (updates - FIRST))


@pytest.mark.parametrize(("cost_s", "step_s"), [(0.00016, 0.001), (0.003, 0.18), (0.0001, 0.1)])
def test_after_the_first_updates_it_takes_no_more_than_its_share(cost_s: float, step_s: float) -> None:
    recorded, spent = kept_share(cost_s, step_s, 0.0025, 20_000)
    assert spent <= 0.0025 * 1.01
    assert recorded >= min(0.0025 * step_s / cost_s, 1.0) * 0.7


def test_what_costs_less_than_the_share_is_recorded_nearly_always() -> None:
    assert kept_share(0.00001, 0.1, 0.0025, 2000)[0] > 0.9


class Often(Pace):
    """Awake for eight updates, then when it is asked for the second time."""

    def __init__(self) -> None:
        super().__init__(1.0, lambda: 0.0, lambda: 0.0)
        self.asked = 0

    def due(self) -> bool:
        self.asked += 1
        return self.asked % 2 == 0


def test_recorded_stretches_are_made_again_and_what_lies_between_is_refused(tmp_path: Path) -> None:
    capture = TorchCapture(lambda: None, Options(budget=1e-9, strict=True))
    tape = DiskTape(tmp_path / FOLDER, windows=True)
    recording = Recording(capture.core, capture.patches, tape, Often())
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(100):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    tape.flush()
    second = 2 * RARELY  # it looks whether it is time in some steps only
    recorded = Recorded(tmp_path)
    for step in (0, FIRST - 1, second, second + WINDOW - 1):
        made = rebuilt(recorded, recording, step)
        assert made.proof == "proved identical", step
        assert made.checked > 0
    for step in (FIRST, second - 1, second + WINDOW):
        with pytest.raises(NotRecorded, match=f"0-{FIRST - 1}, {second}-{second + WINDOW - 1}, "):
            rebuilt(recorded, recording, step)
    capture.close()
    tape.close()


def test_a_stretch_begins_where_no_pass_goes_on_from_one_that_was_left_out(tmp_path: Path) -> None:
    capture = TorchCapture(lambda: None, Options(budget=1e-9, strict=True))
    tape = DiskTape(tmp_path / FOLDER, windows=True)
    recording = Recording(capture.core, capture.patches, tape, Often())
    maker, judge = torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)
    first, second = torch.optim.Adam(judge.parameters()), torch.optim.Adam(maker.parameters())
    for _ in range(80):
        made = maker(torch.randn(8, 4))
        first.zero_grad()
        judge(made.detach()).mean().backward()
        first.step()
        second.zero_grad()
        (-judge(made).mean()).backward()
        second.step()
    tape.flush()
    recorded = Recorded(tmp_path)
    stretches = recorded.stretches()
    assert len(stretches) > 3
    for begin, _ in stretches:
        assert begin % 2 == 0
        assert rebuilt(recorded, recording, begin + 3).proof == "proved identical"
    capture.close()
    tape.close()


def test_a_stretch_begins_with_the_first_pass_of_its_step(tmp_path: Path) -> None:
    """On quiet steps a pass may be told of that is not the first one, for being in another mode than the last."""
    capture = TorchCapture(lambda: None, Options(budget=1e-9, strict=True))
    tape = DiskTape(tmp_path / FOLDER, windows=True)
    recording = Recording(capture.core, capture.patches, tape, Often())
    actor, critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
    for _ in range(200):
        with torch.no_grad():
            later = critic(torch.randn(8, 4))
        now = torch.randn(8, 4)
        chosen, value = actor(now).log_softmax(1)[:, :1], critic(now)
        optimizer.zero_grad()
        ((1 + later - value).square() - chosen * (1 + later - value.detach())).mean().backward()
        optimizer.step()
    tape.flush()
    recorded = Recorded(tmp_path)
    assert len(recorded.stretches()) > 1
    for begin, _ in recorded.stretches():
        assert rebuilt(recorded, recording, begin + 1).proof == "proved identical"
    capture.close()
    tape.close()


def rebuilt(recorded: Recorded, recording: Recording, step: int) -> Any:
    from types import SimpleNamespace

    names = recording.tape.names  # type: ignore[attr-defined]
    objects = Objects(list(names.living_models()), list(names.living_optimizers()))
    bound: Any = SimpleNamespace(
        core=recording.core, tape=recorded.tape(step, objects), optimizers=recording.optimizers, repeatable=True
    )
    return Rebuilder(bound).step(step)


def test_within_its_bytes_whole_stretches_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "FIRST", 4)
    capture = TorchCapture(lambda: None, Options(strict=True))
    limit = 1_500_000
    tape = DiskTape(tmp_path / FOLDER, limit, windows=True)
    recording = Recording(capture.core, capture.patches, tape, Often())
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(600):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        tape.flush()
    assert sum(file.stat().st_size for file in (tmp_path / FOLDER).iterdir()) <= limit + 100_000  # names.json
    recorded = Recorded(tmp_path)
    stretches = recorded.stretches()
    assert stretches[0] == (0, 3)
    assert stretches[-1][1] > 550
    starts = [step for _, step, _ in recorded.states]
    for step in (starts[0], starts[len(starts) // 2], starts[-1]):
        assert rebuilt(recorded, recording, step).proof == "proved identical"
    capture.close()
    tape.close()


def watched(folder: Path, **options: Any) -> tuple[TorchCapture, DiskTape]:
    """Records by itself, awake all the time."""
    capture = TorchCapture(lambda: None, Options(strict=True))
    tape = DiskTape(folder / FOLDER, windows=True, **options)
    Recording(capture.core, capture.patches, tape, Often())
    return capture, tape


def test_frozen_weights_that_are_too_large_are_never_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, tape = watched(tmp_path, bounds=pacing.Bounds(host=100_000, device=0))
    model = torch.nn.Sequential(torch.nn.Linear(400, 100), torch.nn.Linear(100, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    handed: list[str] = []
    real = tape._put
    monkeypatch.setattr(tape, "_put", lambda item, *size: (handed.append(item.told["kind"]), real(item, *size))[1])
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 400)).mean().backward()
        optimizer.step()
    capture.close()
    tape.close()
    assert handed == ["state"]  # of what the optimizer moves; then it ends
    with pytest.raises(NotRecorded, match=r"what no optimizer moves takes 0 MB.*--record full"):
        Recorded(tmp_path)


def test_a_layer_without_a_shape_yet_is_recorded_from_the_next_step_on(tmp_path: Path) -> None:
    capture, tape = watched(tmp_path)
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(2, 3)).mean().backward()
        optimizer.step()
    capture.close()
    tape.close()
    assert Recorded(tmp_path).steps == (1, 4)


def test_the_command_records_the_beginning_and_says_what_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("""
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(300):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
""")
    done = neural(tmp_path, "debug", "--headless", "--out", "run", "train.py")
    assert done.returncode == 0, done.stderr
    assert "of 300 steps can be made again (neural replay --step N); --record full keeps all" in " ".join(
        done.stderr.split()
    )
    assert "proved identical" in neural(tmp_path, "replay", "run", "--step", "12").stdout
    refused = neural(tmp_path, "replay", "run", "--step", "250")
    assert refused.returncode == 2
    assert "--record full" in refused.stderr
