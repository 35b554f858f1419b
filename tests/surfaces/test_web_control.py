"""The original's curl lines against a training that really stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import Training, curl, send, serving, training
from waiting import eventually

from neuraldbg.surfaces.web.doorway import Doorway

ADD = """curl -X POST http://localhost:8050/api/breakpoint \\
  -H "Content-Type: application/json" \\
  -d '{"layer_name": "Conv2D_1", "condition": "layer_data[\\"execution_time\\"] > 0.5"}'"""
LIST = "curl http://localhost:8050/api/breakpoint"
REMOVE = """curl -X DELETE http://localhost:8050/api/breakpoint \\
  -H "Content-Type: application/json" \\
  -d '{"layer_name": "Conv2D_1"}'"""
CONTINUE = "curl -X POST http://localhost:8050/api/continue"
INSPECT = "curl http://localhost:8050/api/layer_inspect/Conv2D_1"


def test_the_curl_lines_of_the_original_work_as_written(live: tuple[Training, Doorway]) -> None:
    trained, door = live
    added = curl(ADD, door)
    assert (added["status"], added["message"]) == ("success", "Breakpoint added for Conv2D_1")
    eventually(lambda: trained.gate.paused)
    listed = curl(LIST, door)
    assert list(listed) == ["Conv2D_1"]
    assert (listed["Conv2D_1"]["enabled"], listed["Conv2D_1"]["hit_count"]) == (True, 1)
    inspected = curl(INSPECT, door)
    assert inspected["breakpoint"]["hit_count"] == 1
    assert inspected["statistics"]["activations"]["mean"] == 0.25
    step = trained.step
    answer = curl(CONTINUE, door)
    assert (answer["status"], answer["message"]) == ("success", "Execution continued")
    eventually(lambda: trained.gate.paused and trained.step > step)
    removed = curl(REMOVE, door)
    assert (removed["status"], removed["message"]) == ("success", "Breakpoint removed for Conv2D_1")
    assert curl(LIST, door) == {}
    curl(CONTINUE, door)
    step = trained.step
    eventually(lambda: trained.step > step + 2)


@pytest.mark.parametrize(
    "condition",
    [
        "layer_data['execution_time'] > 0.5",
        "layer_data['memory'] > 1000",
        "layer_data['grad_norm'] < 0.001",
        "layer_data['mean_activation'] == 0",
    ],
)
def test_the_conditions_of_the_seed_stop_the_run(live: tuple[Training, Doorway], condition: str) -> None:
    trained, door = live
    status, _ = send(door, "POST", "/api/breakpoint", {"layer_name": "fc", "condition": condition})
    assert status == 200
    eventually(lambda: trained.gate.paused)
    assert trained.gate.state()["layer"] == "fc"


def test_a_bad_condition_says_where_and_why(live: tuple[Training, Doorway]) -> None:
    _, door = live
    status, answer = send(door, "POST", "/api/breakpoint", {"layer_name": "fc", "condition": "memory > open('x')"})
    assert status == 422
    assert answer["column"] == 9
    assert "open" in str(answer["why"])
    assert send(door, "POST", "/api/breakpoint/check", {"condition": "grad_norm <"})[0] == 422
    assert send(door, "POST", "/api/breakpoint/check", {"condition": "grad_norm < 1"})[1]["keys"] == ["grad_norm"]


def test_an_unknown_layer_is_404_with_the_nearest(live: tuple[Training, Doorway]) -> None:
    status, answer = send(live[1], "POST", "/api/breakpoint", {"layer_name": "Conv2D_7"})
    assert (status, answer["nearest"][0]) == (404, "conv1")  # type: ignore[index]


def test_a_breakpoint_may_wait_for_a_layer_that_is_not_there_yet(live: tuple[Training, Doorway]) -> None:
    body = {"layer_name": "critic.0", "pending": True}
    status, answer = send(live[1], "POST", "/api/breakpoint", body)
    assert (status, answer["breakpoint"]["pending"]) == (200, True)  # type: ignore[index,call-overload]
    assert send(live[1], "POST", "/api/breakpoint", {"layer_name": "conv1", "pending": "yes"})[0] == 422


def test_phase_and_once_can_be_changed(live: tuple[Training, Doorway]) -> None:
    _, door = live
    number = send(door, "POST", "/api/breakpoint", {"layer_name": "fc", "condition": "step < 0"})[1]["id"]
    changed = send(door, "PATCH", f"/api/breakpoint/{number}", {"phase": "backward", "once": True})[1]["breakpoint"]
    assert (changed["phase"], changed["once"]) == ("backward", True)  # type: ignore[index,call-overload]


def test_the_wrong_state_is_409(live: tuple[Training, Doorway]) -> None:
    trained, door = live
    assert send(door, "POST", "/api/continue") == (409, {"error": "the run is not paused"})
    assert send(door, "POST", "/api/step", {"unit": "step"})[0] == 409
    assert send(door, "POST", "/api/pause")[0] == 200
    eventually(lambda: trained.gate.paused)
    assert send(door, "POST", "/api/pause") == (409, {"error": "the run is paused already"})


def test_next_layer_and_next_step(live: tuple[Training, Doorway]) -> None:
    trained, door = live
    send(door, "POST", "/api/breakpoint", {"layer_name": "conv1", "once": True})
    eventually(lambda: trained.gate.paused)
    assert send(door, "POST", "/api/step")[0] == 200
    eventually(lambda: trained.gate.paused and trained.gate.state()["layer"] == "act")
    assert send(door, "POST", "/api/step", {"unit": "step"})[0] == 200
    eventually(lambda: trained.gate.paused and trained.gate.state()["phase"] == "step")
    assert send(door, "POST", "/api/step", {"unit": "epoch"})[0] == 422
    assert send(door, "GET", "/api/state")[1]["state"] == "paused"
    assert send(door, "GET", "/api/debugger/status")[1]["isPaused"] is True


def test_breakpoints_are_changed_switched_and_removed(live: tuple[Training, Doorway]) -> None:
    _, door = live
    body = {"layer_name": "fc", "condition": "grad_norm < 0", "group": "g"}
    number = send(door, "POST", "/api/breakpoint", body)[1]["id"]
    second = send(door, "POST", "/api/breakpoint", {"layer_name": "fc", "condition": "memory < 0"})[1]["id"]
    assert len(send(door, "GET", "/api/breakpoint")[1]["fc"]["breakpoints"]) == 2  # type: ignore[index,call-overload]
    status, changed = send(door, "PATCH", f"/api/breakpoint/{number}", {"enabled": False})
    assert (status, changed["breakpoint"]["enabled"]) == (200, False)  # type: ignore[index,call-overload]
    assert changed["breakpoint"]["condition"] == "grad_norm < 0"  # type: ignore[index,call-overload]
    assert send(door, "PATCH", "/api/breakpoint/group", {"group": "g", "enabled": True})[0] == 200
    assert send(door, "PATCH", "/api/breakpoint/group", {"group": "h", "enabled": True})[0] == 404
    assert send(door, "DELETE", f"/api/breakpoint/{second}")[0] == 200
    assert send(door, "DELETE", f"/api/breakpoint/{second}")[0] == 404
    assert send(door, "PATCH", "/api/breakpoint/4711", {"enabled": True})[0] == 404


def test_tensors_are_there_while_the_run_is_paused(live: tuple[Training, Doorway]) -> None:
    trained, door = live
    assert send(door, "GET", "/api/tensor?layer=fc")[0] == 409
    send(door, "POST", "/api/breakpoint", {"layer_name": "fc"})
    eventually(lambda: trained.gate.paused)
    status, tensor = send(door, "GET", "/api/tensor?layer=fc&kind=weight&slice=0")
    assert (status, tensor["shape"], tensor["kind"]) == (200, [2, 2], "weight")
    assert send(door, "GET", f"/api/tensor?layer=fc&step={trained.step}")[0] == 200
    assert send(door, "GET", "/api/tensor?layer=fc&step=999999999")[0] == 409


def test_a_server_that_goes_and_comes_again_finds_the_breakpoints(run_dir: Path) -> None:
    with training(run_dir) as trained:
        with serving(run_dir) as door:
            curl(ADD, door)
            eventually(lambda: trained.gate.paused)
        assert trained.gate.paused
        with serving(run_dir) as door:
            assert curl(LIST, door)["Conv2D_1"]["hit_count"] == 1
            curl(CONTINUE, door)


def test_a_trainer_that_goes_leaves_a_run_that_can_be_read(run_dir: Path) -> None:
    with serving(run_dir) as door:
        with training(run_dir):
            assert curl(LIST, door) == {}
        assert send(door, "GET", "/api/breakpoint")[0] == 503
        assert send(door, "GET", "/api/layer_inspect/fc")[0] == 200
        with training(run_dir):
            assert curl(LIST, door) == {}
