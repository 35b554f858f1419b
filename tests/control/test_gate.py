"""The gate: it holds the thread that trains, does what it is asked there, and lets go."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from neuraldbg.control.channel import ChannelClient, ChannelServer
from neuraldbg.control.gate import Gate
from neuraldbg.control.verbs import Verbs
from neuraldbg.errors import (
    AbortedByUser,
    ChannelClosed,
    ChannelError,
    NotPaused,
)
from neuraldbg.records import Phase, Stop

LAYERS = {1: "encoder.0", 2: "encoder.1", 3: "head"}


def resolve(pattern: str) -> dict[int, str]:
    from fnmatch import fnmatchcase

    return {site: name for site, name in LAYERS.items() if fnmatchcase(name, pattern)}


class Training:
    """A thread that goes through the layers again and again, as a trainer does."""

    def __init__(self, gate: Gate, steps: int = 1000) -> None:
        self.gate, self.steps, self.step = gate, steps, 0
        self.ended: BaseException | None = None
        self.finished = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            for step in range(self.steps):
                self.step = step
                for phase in (Phase.FORWARD, Phase.BACKWARD):
                    for site, name in LAYERS.items():
                        self._reach(phase, site, name)
                self._reach(Phase.UPDATE, -1, None)
        except BaseException as error:
            self.ended = error
        finally:
            self.finished.set()

    def _reach(self, phase: Phase, site: int, name: str | None) -> None:
        if self.gate.active:
            values = {"step": self.step, "mean_activation": float(self.step), "grad_norm": 0.5}
            self.gate.reached(Stop(self.step, phase, name, site, values), self.gate.watched(site, phase))


@pytest.fixture
def gate() -> Gate:
    made = Gate()
    made.breakpoints.resolve = resolve
    made.remote = True
    return made


def test_a_run_without_breakpoints_is_never_held(gate: Gate) -> None:
    assert not gate.active
    training = Training(gate, 50)
    assert training.finished.wait(10)
    assert training.ended is None


def test_it_stops_at_the_layer_and_goes_on(gate: Gate) -> None:
    gate.breakpoints.add("head", "step == 3")
    training = Training(gate, 10)
    eventually(lambda: gate.paused)
    state = gate.state()
    assert (state["layer"], state["step"], state["phase"]) == ("head", 3, "forward")
    assert gate.do(lambda stop: stop.values["mean_activation"]) == 3.0
    gate.resume()
    assert training.finished.wait(10)
    (one,) = gate.breakpoints.all()
    assert (one.hit_count, one.trigger_count, one.last_hit_step) == (1, 1, 3)


def test_a_condition_on_gradients_stops_in_backward(gate: Gate) -> None:
    gate.breakpoints.add("encoder.*", "grad_norm < 1 and step == 2")
    training = Training(gate, 4)
    stops = []
    while not training.finished.is_set():
        if gate.paused:
            stops.append((gate.state()["layer"], gate.state()["phase"]))
            gate.resume()
        threading.Event().wait(0.002)
    assert stops == [("encoder.0", "backward"), ("encoder.1", "backward")]


def test_next_layer_and_next_step(gate: Gate) -> None:
    gate.stop_each("step")
    training = Training(gate, 5)
    eventually(lambda: gate.paused)
    assert gate.state()["phase"] == "step"
    gate.step("layer")
    eventually(lambda: gate.paused and gate.state()["layer"] == "encoder.0")
    gate.step("layer")
    eventually(lambda: gate.paused and gate.state()["layer"] == "encoder.1")
    gate.step("step")
    eventually(lambda: gate.paused and gate.state()["phase"] == "step")
    assert gate.state()["step"] == 1
    gate.resume()
    assert training.finished.wait(10)


def test_abort_leaves_like_an_interrupt(gate: Gate) -> None:
    gate.breakpoints.add("head")
    training = Training(gate)
    eventually(lambda: gate.paused)
    gate.abort()
    assert training.finished.wait(10)
    assert isinstance(training.ended, AbortedByUser)
    assert isinstance(training.ended, KeyboardInterrupt)


def test_where_nobody_can_answer_hits_are_counted_and_nothing_stops(gate: Gate) -> None:
    said: list[str] = []
    gate.remote, gate.say = False, said.append
    gate.breakpoints.add("head")
    training = Training(gate, 20)
    assert training.finished.wait(10)
    (one,) = gate.breakpoints.all()
    assert (one.hit_count, one.trigger_count) == (20, 0)
    assert len(said) == 1
    assert "Nobody can answer" in said[0]


def test_in_log_only_mode_hits_are_said_and_nothing_stops(gate: Gate) -> None:
    said: list[str] = []
    gate.pausing, gate.say = False, said.append
    gate.breakpoints.add("head", "step >= 18")
    training = Training(gate, 20)
    assert training.finished.wait(10)
    assert len(said) == 2
    assert gate.breakpoints.all()[0].trigger_count == 0


def test_once_is_once(gate: Gate) -> None:
    gate.breakpoints.add("head", once=True)
    training = Training(gate, 20)
    eventually(lambda: gate.paused)
    gate.resume()
    assert training.finished.wait(10)
    assert gate.breakpoints.all() == []


def test_a_condition_that_raises_is_put_off_and_training_goes_on(gate: Gate) -> None:
    said: list[str] = []
    gate.say = said.append
    gate.breakpoints.add("head", "1 / (step - 3) > 100")
    training = Training(gate, 20)
    assert training.finished.wait(10)
    (one,) = gate.breakpoints.all()
    assert not one.spec.enabled
    assert "ZeroDivisionError" in (one.failed or "")
    assert len(said) == 1


def test_a_function_of_the_users_own_stops_it(gate: Gate) -> None:
    gate.break_when(lambda stop: stop.step == 4 and stop.layer == "head", "mine")
    training = Training(gate, 20)
    eventually(lambda: gate.paused)
    assert gate.state()["reasons"] == ["mine held"]
    gate.when.clear()
    gate.resume()
    assert training.finished.wait(10)


def test_a_pause_is_a_pause_wherever_training_is(gate: Gate) -> None:
    training = Training(gate, 10**9)
    eventually(lambda: training.step > 5)
    gate.pause()
    eventually(lambda: gate.paused)
    with pytest.raises(NotPaused):
        gate.pause()
    gate.abort()
    assert training.finished.wait(10)
    with pytest.raises(NotPaused):
        gate.resume()


def test_layers_are_left_alone_while_only_updates_can_stop(gate: Gate) -> None:
    gate.break_on("nan_loss")
    assert (gate.active, gate.at_layers) == (True, False)
    gate.found("nan_loss", "the loss is NaN")
    assert not gate.at_layers


def test_what_is_found_stops_after_the_next_update_and_all_of_it_is_told(gate: Gate) -> None:
    gate.break_on("dead_neurons")
    gate.break_on("no_learning")
    gate.found("dead_neurons", "units are dead")
    gate.found("no_learning", "the loss stands still")
    training = Training(gate, 3)
    eventually(lambda: gate.paused)
    state = gate.state()
    assert state["phase"] == "step"
    assert state["reasons"] == ["dead_neurons: units are dead", "no_learning: the loss stands still"]
    gate.resume()
    assert training.finished.wait(10)


def test_the_held_thread_may_run_layers_itself(gate: Gate) -> None:
    """`p model(x)` at a breakpoint in the model."""
    gate.breakpoints.add("head")
    training = Training(gate, 1)
    eventually(lambda: gate.paused)

    def again(stop: Stop) -> str:
        gate.reached(stop, gate.watched(3, Phase.FORWARD))
        gate.hold(stop, ["again"])
        return "done"

    assert gate.do(again, timeout_s=5) == "done"
    assert [one.hit_count for one in gate.breakpoints] == [1]
    gate.resume()
    assert training.finished.wait(10)


def test_a_prompt_that_fails_is_not_asked_again_and_breakpoints_stay(gate: Gate) -> None:
    asked = []

    def prompt(*_: object) -> None:
        asked.append(1)
        raise OSError("the terminal is gone")

    gate.prompt = prompt
    one = gate.breakpoints.add("head")
    training = Training(gate, 2)
    eventually(lambda: gate.paused)
    gate.resume()
    eventually(lambda: gate.paused)
    gate.resume()
    assert training.finished.wait(10)
    assert (asked, one.trigger_count) == ([1], 2)


def test_without_a_server_a_prompt_that_fails_lets_training_go_on(gate: Gate) -> None:
    def prompt(*_: object) -> None:
        raise ValueError("I/O operation on closed file")

    gate.prompt, gate.remote = prompt, False
    gate.breakpoints.add("head")
    assert Training(gate, 2).finished.wait(10)


def test_nobody_who_hears_is_no_reason_to_fail(gate: Gate) -> None:
    def say(_: str) -> None:
        raise BrokenPipeError

    gate.say = say
    gate.breakpoints.add("head")
    training = Training(gate, 1)
    eventually(lambda: gate.paused)
    gate.resume()
    assert training.finished.wait(10)
    assert training.ended is None


def test_after_the_script_nothing_is_held(gate: Gate) -> None:
    gate.breakpoints.add("head")
    training = Training(gate, 5)
    eventually(lambda: gate.paused)
    gate.retire()
    assert training.finished.wait(10)


# -- the channel -------------------------------------------------------------------------------------------------------


def test_everything_can_be_asked_over_the_channel(gate: Gate, tmp_path: Path) -> None:
    server = ChannelServer(Verbs(gate), tmp_path)
    events: list[dict[str, Any]] = []
    gate.on_event.append(server.publish)
    client = ChannelClient(tmp_path, on_event=events.append)
    training = None
    try:
        assert client.call("state")["state"] == "running"
        added = client.call("add", layer_name="head", condition="step == 2")
        training = Training(gate, 6)
        eventually(lambda: client.call("state")["state"] == "paused")
        assert client.call("breakpoints")[0]["hit_count"] == 1
        assert client.call("change", id=added["id"], enabled=False)["enabled"] is False
        client.call("step", unit="layer")
        eventually(lambda: client.call("state").get("phase") == "backward")
        assert client.call("remove", layer_name="head")[0]["id"] == added["id"]
        client.call("continue")
        assert training.finished.wait(10)
        eventually(lambda: [e["event"] for e in events].count("running") == 2)
        told = [e["event"] for e in events]
        assert told.count("breakpoints") == 3, "one was added, changed and removed"
        assert [one for one in told if one != "breakpoints"] == ["hit", "paused", "running", "paused", "running"]
        for verb, arguments, kind in [
            ("continue", {}, "NotPaused"),
            ("add", {"layer_name": "haed"}, "UnknownBreakpoint"),
            ("add", {"layer_name": "head", "condition": "step ** 2"}, "ConditionError"),
            ("nonsense", {}, "UsageError"),
            ("remove", {}, "UsageError"),
        ]:
            with pytest.raises(ChannelError) as refused:
                client.call(verb, **arguments)
            assert refused.value.kind == kind
    finally:
        client.close()
        server.close()
        if training is not None:
            training.thread.join(10)
    assert not (tmp_path / "control.json").exists()
    with pytest.raises(ChannelClosed):
        ChannelClient(tmp_path)


def test_a_client_learns_that_the_trainer_is_gone(gate: Gate, tmp_path: Path) -> None:
    server = ChannelServer(Verbs(gate), tmp_path)
    client = ChannelClient(tmp_path)
    server.close()
    with pytest.raises(ChannelClosed):
        client.call("state")
    client.close()


def test_a_wrong_token_is_refused(gate: Gate, tmp_path: Path) -> None:
    server = ChannelServer(Verbs(gate), tmp_path)
    try:
        file = tmp_path / "control.json"
        file.write_text(file.read_text().replace('"token": "', '"token": "x'))
        with pytest.raises(ChannelClosed):
            ChannelClient(tmp_path)
    finally:
        server.close()
