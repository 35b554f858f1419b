"""The blocks of the original documents, typed as they stand: same commands, same names, same order of calls."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forkserver import ForkServer, Running
from made_runs import made_run
from texts import NETWORK
from waiting import eventually

from neuraldbg.analysis import profile
from neuraldbg.records import Phase
from neuraldbg.trace import open_trace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("model", "mnist"):
        (tmp_path / f"{name}.neural").write_text(NETWORK)
    return tmp_path


# -- `neural debug` ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "neural debug model.neural",
        "neural debug mnist.neural --backend pytorch",
        "neural debug mnist.neural --port 8888",
        "neural debug model.neural --gradients",
        "neural debug model.neural --gradients --vanishing-threshold 1e-5",
        "neural debug model.neural --dead-neurons",
        "neural debug model.neural --dead-neurons --activation-threshold 0.01",
        "neural debug model.neural --anomalies",
        "neural debug model.neural --anomalies --alert-on-nan",
        "neural debug model.neural --export debug_session.json",
    ],
)
def test_a_line_is_served_judged_and_ends_well(line: str, folder: Path, torch_server: ForkServer) -> None:
    done = torch_server.neural(*shlex.split(line)[1:], cwd=folder, timeout=120)
    assert done.code == 0, done.stderr
    assert "Verdict" in done.stderr
    assert re.search(r"serving on http://127\.0\.0\.1:\d+", done.stderr)
    if "--export" in line:
        assert json.loads((folder / "debug_session.json").read_text())["schema"] == "neuraldbg.session/1"


def test_two_sessions_are_compared(folder: Path, torch_server: ForkServer) -> None:
    for number in ("1", "2"):
        words = ("debug", "--headless", "model.neural", "--export", f"debug_session_{number}.json")
        assert torch_server.neural(*words, cwd=folder, timeout=120).code == 0
    line = "debug model.neural --compare debug_session_1.json debug_session_2.json"
    done = torch_server.neural(*shlex.split(line), cwd=folder)
    assert done.code == 0, done.stderr
    assert "loss" in done.stdout.lower()


def test_every_layer_has_the_shapes_that_go_in_and_out(folder: Path, torch_server: ForkServer) -> None:
    words = ("debug", "--headless", "--out", "run", "model.neural")
    assert torch_server.neural(*words, cwd=folder, timeout=120).code == 0
    with open_trace(folder / "run") as trace:
        shapes = {trace.canonical(site): (site.input_shape, site.shape) for site in trace.sites}
    assert shapes["Dense_1"] == ((16, 8), (16, 4))
    assert shapes["Output_1"] == ((16, 4), (16, 2))


SATURATED = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
with torch.no_grad():
    model[0].weight.mul_(100)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(60):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""


def test_units_in_the_flat_part_of_their_activation_are_told(tmp_path: Path, torch_server: ForkServer) -> None:
    (tmp_path / "train.py").write_text(SATURATED)
    words = ("debug", "--headless", "--dead-neurons", "--export", "session.json", "train.py")
    assert torch_server.neural(*words, cwd=tmp_path, timeout=120).code == 0
    session = json.loads((tmp_path / "session.json").read_text())
    found = {one["kind"]: one for one in session["findings"]}
    chained = [link["kind"] for one in session["findings"] for link in one["chain"]]
    assert "saturated_units" in {*found, *chained}, session["findings"]


def test_the_ten_slowest_layers_have_their_times(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        model = run.model()
        for at in range(12):
            layer = run.module(f"layer{at}", "Linear", model)
            for step in range(3):
                run.span(layer, Phase.FORWARD, step, duration_ms=10.0 * at + step)
        run.end(steps=3)
    with open_trace(tmp_path / "run") as trace:
        slowest = profile.slowest(trace)
    assert [one["layer"] for one in slowest] == [f"layer{at}" for at in range(11, 1, -1)]
    first = slowest[0]
    assert (first["call_count"], first["total_time"]) == (3, pytest.approx(0.333))
    times = [first[name] for name in ("min_time", "avg_time", "max_time")]
    assert times == pytest.approx([0.110, 0.111, 0.112])


@pytest.mark.parametrize("line", ["neural debug model.neural --step", "neural debug model.neural --breakpoint Dense_1"])
def test_a_line_that_stops_is_let_go_by_the_lines_of_the_dashboard(
    line: str, folder: Path, torch_server: ForkServer
) -> None:
    running = torch_server.start(*shlex.split(line)[1:], neural=True, cwd=folder)
    try:
        eventually(lambda: b"paused at" in running.err and b"serving on http" in running.err)
        go_on(line, running)
        done = running.wait(timeout=120)
    finally:
        if running.code is None:
            running.kill()
    assert done.code == 0, done.stderr
    assert "Verdict" in done.stderr


def go_on(line: str, running: Running) -> None:
    found = re.search(rb"serving on http://127\.0\.0\.1:(\d+)", running.err)
    assert found is not None
    port = int(found[1])
    if "--breakpoint" in line:
        assert "Dense_1" in json.dumps(curl("http://localhost:8050/api/breakpoint", port))
        body = "-H 'Content-Type: application/json' -d '{\"layer_name\": \"Dense_1\"}'"
        removed = curl(f"-X DELETE http://localhost:8050/api/breakpoint {body}", port)
        assert (removed["status"], removed["message"]) == ("success", "Breakpoint removed for Dense_1")
    told = curl("-X POST http://localhost:8050/api/continue", port)
    assert (told["status"], told["message"]) == ("success", "Execution continued")


def curl(line: str, port: int) -> Any:
    words = shlex.split(line.replace("localhost:8050", f"localhost:{port}"))
    done = subprocess.run(["curl", "-sS", "--max-time", "30", *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


# -- `neural.profiling` ------------------------------------------------------------------------------------------------


def test_layers_are_profiled() -> None:
    from neural.profiling import ProfilerManager

    profiler = ProfilerManager(enable_all=True)
    profiler.start_profiling()
    layers = ["Input", "Conv2D", "ReLU", "MaxPool", "Dense", "Softmax"]
    for layer_name in layers:
        with profiler.profile_layer(layer_name):
            np.ones((64, 64)) @ np.ones((64, 64))
    profiler.end_profiling()
    report = profiler.get_comprehensive_report()
    assert set(report["layer_profiling"]["layer_stats"]) == set(layers)
    assert str(report)


def test_backends_are_compared() -> None:
    from neural.profiling import ComparativeProfiler, LayerProfiler

    comparative = ComparativeProfiler()
    for times, backend in enumerate(["tensorflow", "pytorch", "onnx"], start=1):
        timed = LayerProfiler()
        for _ in range(times):
            timed.start_layer("Dense")
            timed.end_layer("Dense", {})
        comparative.add_backend_profile(backend, timed.export_to_dict())
    comparison = comparative.compare_backends()
    ranking = [name for name, _ in comparative.get_backend_ranking()]
    assert comparison["summary"]["fastest_backend"] == ranking[0]
    assert comparison["summary"]["recommendation"]


def test_nodes_are_analysed() -> None:
    from neural.profiling import DistributedTrainingProfiler

    dist_profiler = DistributedTrainingProfiler()
    node_profiles = {f"node_{at}": {"summary": {"total_time": 1.0 + at}} for at in range(2)}
    for node_id, profile_data in node_profiles.items():
        dist_profiler.add_node_profile(node_id, profile_data)
    dist_profiler.record_communication(
        source_node="node_0",
        dest_node="node_1",
        data_size_mb=100,
        duration_ms=50,
        operation_type="gradient_transfer",
    )
    analysis = dist_profiler.get_bottleneck_analysis()
    assert {each["type"] for each in analysis["bottlenecks"]} >= {"load_imbalance"}


def test_profiles_reach_the_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from neural.dashboard.dashboard import close_run, update_profiling_data
    from neural.profiling import BottleneckAnalyzer, MemoryLeakDetector, ProfilerManager

    profiler = ProfilerManager()
    with profiler.profile_layer("Conv2D_1"):
        pass
    dashboard_data = profiler.get_dashboard_data()
    update_profiling_data(dashboard_data)
    close_run()
    assert BottleneckAnalyzer(threshold_percentile=95.0).threshold_percentile == 95.0
    assert MemoryLeakDetector(threshold_mb=20.0, window_size=15).window_size == 15


# -- the toolkit's profiler and plots ----------------------------------------------------------------------------------


def test_timers_and_layers_that_were_told_are_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuraldbg.debug import BottleneckType, debug_session

    monkeypatch.chdir(tmp_path)
    session = debug_session()
    session.start()
    profiler = session.profiler_mut()
    profiler.start_timer("layer_forward")
    duration = profiler.end_timer("layer_forward")
    assert duration >= 0
    forward_time, backward_time, memory_usage, parameter_count = 0.2, 0.7, 3 << 20, 1000
    profiler.record_layer_execution(
        "transformer_block_0", "TransformerBlock", forward_time, backward_time, memory_usage, parameter_count
    )
    for name in ("embedding", "head"):
        profiler.record_layer_execution(name, "Linear", 0.01, 0.02, 1 << 10, 10)
    told = session.stop().profiler
    assert told.slowest_layers[0] == ("transformer_block_0", pytest.approx(0.9))
    kinds = {each.type for each in told.bottlenecks if each.name == "transformer_block_0"}
    assert kinds == {
        BottleneckType.ModelComputation,
        BottleneckType.GradientComputation,
        BottleneckType.MemoryBound,
    }
    assert all(each.suggestion in told.recommendations for each in told.bottlenecks)


def test_plots_are_made_and_put_together(tmp_path: Path) -> None:
    from neuraldbg.debug import DebugVisualizer, TerminalVisualizer, VisualizationConfig

    visualizer = DebugVisualizer(VisualizationConfig(output_directory=str(tmp_path / "plots")))
    values = [1.0, 2.0, 1.5, 3.0, 2.5, 1.8, 2.2]
    visualizer.plot_tensor_distribution("weights", values, 10)
    steps, gradients = [0, 1, 2, 3, 4], [0.1, 0.08, 0.06, 0.04, 0.03]
    visualizer.plot_gradient_flow("layer1", steps, gradients)
    plot_names = visualizer.get_plot_names()
    dashboard = visualizer.create_dashboard(plot_names)
    assert dashboard.path.read_text().count("<svg") == 2
    terminal_viz = TerminalVisualizer(80, 24)
    assert terminal_viz.ascii_histogram(values, 10).endswith("7 values")
    assert terminal_viz.ascii_line_plot(steps, gradients, "Training Loss").startswith("Training Loss")
