"""Functions of the user's own, called while a network runs; and the page of a pushed run."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neural.dashboard import dashboard
from neural.dashboard.hooks import UnknownEvent, register_hook, unregister_hook
from neural.dashboard.profiler_utils import LayerExecutionWrapper, anomaly_monitor, breakpoint_helper
from neuraldbg.control.channel import channel
from neuraldbg.control.server_file import how_to_continue
from neuraldbg.errors import ChannelClosed, ChannelError, UsageError

ROOT = Path(__file__).parents[2]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.ReLU()), nn.Linear(2, 1))


def test_the_hook_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    @register_hook("after_layer")
    def inspect_activations(layer_name, activations):  # type: ignore[no-untyped-def]
        print(f"{layer_name}: mean={activations.mean()}")

    with torch.no_grad():
        net()(torch.ones(2, 3))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["0", "1.0", "2"]
    assert all("mean=" in line for line in lines)


def test_every_moment_of_a_step_is_told_in_order() -> None:
    told: list[tuple[str, str | int]] = []
    register_hook("before_layer")(lambda layer_name: told.append(("before_layer", layer_name)))
    register_hook("after_layer")(lambda layer: told.append(("after_layer", layer)))
    register_hook("before_backward")(lambda layer_name, gradients: told.append(("before_backward", layer_name)))
    register_hook("after_backward")(lambda layer_name, grad: told.append(("after_backward", layer_name)))
    register_hook("after_step")(lambda step: told.append(("after_step", step)))
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert told[:4] == [("before_layer", "0"), ("after_layer", "0"), ("before_layer", "1"), ("after_layer", "1")]
    assert told[-1] == ("after_step", 0)
    assert set(told[4:-1]) == {(moment, layer) for moment in ("before_backward", "after_backward") for layer in "01"}
    assert told.index(("before_backward", "1")) < told.index(("after_backward", "1"))


class Prompt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.learned = nn.Parameter(torch.ones(3))

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        return self.learned if scale.is_leaf else self.learned * scale


def test_a_tensor_that_lives_on_is_told_of_once_a_pass() -> None:
    told: list[str] = []
    before = register_hook("before_backward")(lambda layer_name, gradients: told.append("before"))
    after = register_hook("after_backward")(lambda layer_name, gradients: told.append("after"))
    model, image = Prompt(), torch.ones(3, requires_grad=True)
    for _ in range(4):
        told.clear()
        (model(image) * image).sum().backward()
        assert sorted(told) == ["after", "before"]
    unregister_hook(before)
    unregister_hook(after)
    assert not model.learned._backward_hooks
    assert not image._backward_hooks


def test_training_is_the_same_with_hooks() -> None:
    def train() -> list[float]:
        torch.manual_seed(3)
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 3)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    before = train()
    register_hook("after_layer")(lambda layer_name, activations: activations.mean())
    register_hook("after_backward")(lambda layer_name, gradients: None)
    assert train() == before


def test_a_hook_that_fails_is_told_of_once_and_called_no_more(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    @register_hook("after_layer")
    def broken(layer_name: str) -> None:
        calls.append(layer_name)
        raise RuntimeError("no")

    net()(torch.ones(2, 3))
    assert calls == ["0"]
    assert caplog.text.count("called no more") == 1


def test_unregistering_the_last_takes_the_hooks_of_the_framework_away() -> None:
    from torch.nn.modules import module

    before = len(module._global_forward_hooks)
    seen: list[str] = []
    function = register_hook("after_layer")(seen.append)
    assert len(module._global_forward_hooks) == before + 1
    unregister_hook(function)
    assert len(module._global_forward_hooks) == before


def test_an_unknown_moment_answers_with_the_nearest() -> None:
    with pytest.raises(UnknownEvent, match="after_layer"):
        register_hook("after_layr")
    with pytest.raises(UnknownEvent) as refused:
        register_hook("zork")
    assert str(refused.value).startswith("no event 'zork'; there are before_layer, after_layer, ")
    assert "run" not in str(refused.value)


def test_layers_by_hand_breakpoints_and_anomalies_are_moments_too() -> None:
    told: list[Any] = []
    register_hook("after_layer")(lambda layer_name, activations: told.append((layer_name, activations)))
    register_hook("on_anomaly")(lambda layer_name, result: told.append((layer_name, result["is_anomaly"])))
    register_hook("on_breakpoint")(lambda **values: told.append(values))
    LayerExecutionWrapper().wrap("Dense_1")(lambda: 7)()
    anomaly_monitor.check("a", {"grad_norm": float("inf")})
    breakpoint_helper.wait = True
    manager = dashboard.breakpoint_manager
    manager.add_breakpoint("b")
    manager.on_hold.append(lambda *_: manager.continue_execution())
    assert breakpoint_helper.check("b", {"x": 1}) is True
    assert told == [("Dense_1", 7), ("a", True), {"layer_name": "b", "data": {"x": 1}}]


def test_a_breakpoint_of_a_training_is_a_moment_too(tmp_path: Path) -> None:
    from neuraldbg import NeuralDbg

    told: list[tuple[str, float]] = []
    hook = register_hook("on_breakpoint")(lambda layer_name, data: told.append((layer_name, data["mean_activation"])))
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NeuralDbg(model, out=tmp_path / "run") as dbg:
        dbg.breakpoints.add("1", "step >= 1")
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        assert [layer for layer, _ in told] == ["1", "1"]
        assert all(isinstance(mean, float) for _, mean in told)
        unregister_hook(hook)
        model(torch.ones(2, 3)).sum().backward()
        assert len(told) == 2


# -- the page ----------------------------------------------------------------------------------------------------------


def asked(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} if body is not None else {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def pushed_directory() -> Path:
    directory = dashboard.pushed_run.directory
    assert directory is not None
    return directory


def test_the_page_of_a_pushed_run_is_served_on_the_next_free_port(capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.update_dashboard_data(new_trace_data=[{"layer": "Dense_1", "execution_time": 0.5, "grad_norm": 2.0}])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        serving = dashboard.start_dashboard_server(port=taken.getsockname()[1])
        assert [run["name"] for run in asked(f"{serving.url}/api/runs")["runs"]] == [pushed_directory().name]
    assert "is taken, serving on" in capsys.readouterr().err
    assert dashboard.app is dashboard.server
    dashboard.close_run()
    with pytest.raises(OSError, match=r"refused|Connection"):
        urllib.request.urlopen(serving.url, timeout=5)


def test_the_page_shows_what_was_pushed_and_lets_a_paused_loop_go_on() -> None:
    dashboard.update_dashboard_data(new_trace_data=[{"layer": "Dense_1", "execution_time": 0.5, "own": 2.0}])
    url = dashboard.start_dashboard_server(port=0).url
    assert asked(f"{url}/api/breakpoint", {"layer_name": "Dense_1"})
    there = threading.Event()
    dashboard.breakpoint_manager.on_hold.append(lambda *_: there.set())
    loop = threading.Thread(target=breakpoint_helper.check, args=("Dense_1", {"own": 2}))
    loop.start()
    assert there.wait(20)
    assert asked(f"{url}/api/state")["state"] == "paused"
    assert how_to_continue(pushed_directory()) == f"curl -X POST {url}/api/continue"
    asked(f"{url}/api/continue", {})
    loop.join(20)
    assert not loop.is_alive()
    dashboard.close_run()
    assert how_to_continue(pushed_directory()) is None


def test_the_page_reaches_the_breakpoints_of_a_pushed_run() -> None:
    assert callable(dashboard.app)
    manager = dashboard.breakpoint_manager
    there = threading.Event()
    manager.on_hold.append(lambda *_: there.set())
    with channel(pushed_directory()) as page:
        added = page.call("add", layer_name="Conv2D_1", condition="layer_data['own'] > 1", group="g")
        assert (added["layer_name"], added["hit_count"]) == ("Conv2D_1", 0)
        with pytest.raises(ChannelError, match="not paused"):
            page.call("continue")
        loop = threading.Thread(target=breakpoint_helper.check, args=("Conv2D_1", {"own": 2}))
        loop.start()
        assert there.wait(20)
        state = page.call("state")
        assert (state["state"], state["layer"], state["values"]) == ("paused", "Conv2D_1", {"own": 2})
        page.call("continue")
        loop.join(20)
        assert [one["trigger_count"] for one in page.call("breakpoints")] == [1]
        assert page.call("change", id=added["id"], enabled=False)["enabled"] is False
        assert page.call("group", group="g", enabled=True)[0]["enabled"] is True
        with pytest.raises(ChannelError, match="character 1"):
            page.call("add", layer_name="x", condition="__import__('os')")
        assert page.call("remove", layer_name="Conv2D_1")[0]["id"] == added["id"]
        with pytest.raises(ChannelError, match="by hand"):
            page.call("tensor", layer="Conv2D_1")
    dashboard.close_run()
    with pytest.raises(ChannelClosed), channel(pushed_directory()):
        pass


def test_a_pushed_run_is_not_served_to_other_machines() -> None:
    with pytest.raises(UsageError, match="this machine only"):
        dashboard.start_dashboard_server(host="0.0.0.0")
    assert not dashboard.can_answer()


def test_the_module_runs_as_a_script_and_says_when_there_is_nothing(tmp_path: Path) -> None:
    script = ROOT / "neural" / "dashboard" / "dashboard.py"
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "no data available" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("word", "code"), [("--help", 0), ("-h", 0), ("--prot", 2)])
def test_the_module_as_a_script_says_how_it_is_used(tmp_path: Path, word: str, code: int) -> None:
    script = ROOT / "neural" / "dashboard" / "dashboard.py"
    done = subprocess.run(
        [sys.executable, str(script), word], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code
    assert "usage: python neural/dashboard/dashboard.py" in (done.stderr if code else done.stdout)
    assert "neural view RUN --port N" in done.stdout + done.stderr


def test_the_module_as_a_script_serves_the_runs_of_the_folder(tmp_path: Path) -> None:
    dashboard.update_dashboard_data(new_trace_data=[{"layer": "Dense_1", "execution_time": 0.5}])
    dashboard.close_run()
    script = ROOT / "neural" / "dashboard" / "dashboard.py"
    environment = {**os.environ, "NEURALDBG_PORT": "0"}
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        url = re.findall(r"http://\S+", process.stderr.readline())[0]
        assert [run["name"] for run in asked(f"{url}/api/runs")["runs"]] == [pushed_directory().name]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
