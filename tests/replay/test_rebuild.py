"""Any past step is made again bit for bit, or says that it is not the same: the hash decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from replayed_programs import PROGRAMS, UPDATES, F, Program, Truth, batch, clipped_with_schedule, mlp
from torch import Tensor, nn

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.capture.torch.passes import KeptTensor
from neuraldbg.capture.torch.recording import tape
from neuraldbg.capture.torch.recording.taking import Recording
from neuraldbg.capture.torch.recording.tape import Tape, TapedCall, TapedPass
from neuraldbg.errors import NotRecorded
from neuraldbg.replay.rebuild import Rebuilder


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    monkeypatch.setattr(tape, "EVERY", 3)
    capture = TorchCapture(lambda: None, Options(strict=True))
    yield Recording(capture.core, capture.patches, Tape())
    capture.close()


def same(found: list[Tensor], right: list[Tensor]) -> bool:
    return len(found) == len(right) and all(torch.equal(a, b) for a, b in zip(found, right, strict=True))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_step_is_made_again_bit_for_bit_and_nothing_is_left_of_it(program: Program, recording: Recording) -> None:
    torch.manual_seed(0)
    truth = Truth()
    program(truth)
    states = {name: [p.detach().clone() for p in layer.parameters()] for name, layer in truth.layers.items()}
    generator = torch.get_rng_state()
    kept, truth.outputs = truth.outputs, {}
    gradients, truth.gradients = truth.gradients, {}
    compared = 0
    for step in range(truth.step + 1):
        truth.step = -1  # hooks of the test run in the replay too
        made = Rebuilder(recording).step(step, truth.layers)
        assert made.proof == "proved identical", (step, made)
        for name, outputs in kept[step].items():
            assert same(made.seen[name].outputs, outputs), (step, name)
            compared += len(outputs)
            for number, gradient in gradients[step].get(name, {}).items():
                assert torch.equal(made.seen[name].gradients[number], gradient), (step, name, number)
    assert compared >= UPDATES
    assert torch.equal(torch.get_rng_state(), generator)
    for name, layer in truth.layers.items():
        assert same([p.detach() for p in layer.parameters()], states[name]), name


def corrupt_rows(recording: Recording) -> None:
    leaf = next(iter(_first_pass(recording).record.args))
    assert isinstance(leaf, KeptTensor)
    leaf.tensor.copy_(leaf.tensor.flip(0))


def corrupt_elements(recording: Recording) -> None:
    leaf = next(iter(_first_pass(recording).record.args))
    first = leaf.tensor.view(-1)
    first[0], first[1] = first[1].clone(), first[0].clone()


def corrupt_bit(recording: Recording) -> None:
    _, value = recording.tape.states[0].parameters[0]
    value.view(torch.int32).view(-1)[3] ^= 1


def corrupt_buffer(recording: Recording) -> None:
    recording.tape.states[0].parameters[2][1].add_(1e-3)


def corrupt_transform(recording: Recording) -> None:
    """As if the clipping had not been seen."""
    for one in recording.tape.entries:
        if isinstance(one, TapedCall) and one.name.startswith("clip"):
            one.parameters = ()


def corrupt_gradient(recording: Recording) -> None:
    arrived = next(iter(_first_pass(recording).arrived.values()))
    arrived[0].view(-1)[0] += 1e-3


def _first_pass(recording: Recording) -> TapedPass:
    return next(one for one in recording.tape.entries if isinstance(one, TapedPass))


@pytest.mark.parametrize(
    "corrupt", [corrupt_rows, corrupt_elements, corrupt_bit, corrupt_buffer, corrupt_transform, corrupt_gradient]
)
def test_a_replay_that_went_wrong_is_never_called_identical(
    corrupt: Callable[[Recording], None], recording: Recording
) -> None:
    torch.manual_seed(0)
    truth = Truth()
    clipped_with_schedule(truth)
    corrupt(recording)
    made = Rebuilder(recording).step(1)
    assert made.differs_since in (0, 1)
    assert made.proof.startswith("not identical since update")


def test_a_tape_with_a_hole_is_not_followed_beyond_it(recording: Recording) -> None:
    clipped_with_schedule(Truth())
    recording.tape.entries.remove(_first_pass(recording))
    with pytest.raises(NotRecorded, match="cannot be made again"):
        Rebuilder(recording).step(1)


def test_a_closure_and_a_step_that_is_not_on_the_tape_are_refused(recording: Recording) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, y = torch.randn(16, 4), torch.randn(16, 1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    with pytest.raises(NotRecorded, match="closure"):
        Rebuilder(recording).step(1)
    with pytest.raises(NotRecorded, match="steps 0 to 1"):
        Rebuilder(recording).step(99)


def test_gradients_that_something_unknown_changed_after_a_clipping_are_kept(recording: Recording) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for p in model.parameters():
            assert p.grad is not None
            p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
        optimizer.step()
    assert Rebuilder(recording).step(3).proof == "proved identical"


def penalty(model: nn.Module, out: Tensor, x: Tensor) -> Tensor:
    return 0.1 * sum((p.square().sum() for p in model.parameters()), torch.zeros(()))


def gradient_penalty(model: nn.Module, out: Tensor, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return slope.square().mean()


@pytest.mark.parametrize("term", [penalty, gradient_penalty])
def test_a_loss_term_that_goes_past_the_pass_is_made_again_as_well(
    recording: Recording, term: Callable[[nn.Module, Tensor, Tensor], Tensor]
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.randn(16, 4, requires_grad=True)
        optimizer.zero_grad()
        out = model(x)
        (out.square().mean() + term(model, out, x)).backward()
        optimizer.step()
    made = Rebuilder(recording).step(3)
    assert made.proof == "proved identical"
    assert made.checked >= 4


def test_a_gradient_that_was_only_looked_at_is_not_made_part_of_the_step(recording: Recording) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch.autograd.grad(model(x).sum(), list(model.parameters()))
        optimizer.step()
    assert Rebuilder(recording).step(3).proof == "proved identical"


class Counting(torch.optim.SGD):
    """Keeps a number of its own, and fails when it is asked too often."""

    steps, most = 0, 100

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        if self.steps >= self.most:
            raise RuntimeError("enough")
        self.steps += 1
        super().step(closure)  # type: ignore[arg-type]


def test_what_an_optimizer_keeps_for_itself_is_put_back_also_when_its_step_fails(recording: Recording) -> None:
    model = mlp()
    optimizer = Counting(model.parameters(), lr=0.1)
    for number in range(4):
        optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert Rebuilder(recording).step(2).proof == "proved identical"
    assert optimizer.steps == 4
    optimizer.most = 4
    with pytest.raises(RuntimeError, match="enough"):
        Rebuilder(recording).step(2)
    assert optimizer.param_groups[0]["lr"] == 0.1 / 4


def test_an_input_that_was_written_to_is_noticed(recording: Recording) -> None:
    model = nn.Linear(4096, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(600, 4096)  # too large to be copied
    for _ in range(2):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    x.zero_()
    with pytest.raises(NotRecorded, match="written to"):
        Rebuilder(recording).step(0)


def test_the_tape_stays_within_its_bytes_and_the_newest_steps_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "EVERY", 5)
    capture = TorchCapture(lambda: None, Options(strict=True))
    recording = Recording(capture.core, capture.patches, Tape(1_000_000))
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(300):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        assert recording.tape.bytes <= 1_000_000
    first, last = recording.tape.steps or (0, 0)
    assert last == 299
    assert first > 0
    assert recording.tape.lost > 0
    assert Rebuilder(recording).step(last).proof == "proved identical"
    assert Rebuilder(recording).step(first).proof == "proved identical"
    with pytest.raises(NotRecorded):
        Rebuilder(recording).step(0)
    capture.close()
