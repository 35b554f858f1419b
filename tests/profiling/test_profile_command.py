"""neural profile: what it prints at 80 columns, what it writes, what it calls by name."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from forkserver import ForkServer, Result

pytest.importorskip("torch")

SMALL = """
import torch
from torch import nn
torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.head = nn.Linear(64, 4)
    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for step in range(30):
    loss = model(torch.randn(128, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained")
"""
SLOW_LOADER = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self):
        return 320
    def __getitem__(self, at):
        time.sleep(0.001)
        return torch.ones(32)
model = nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Rows(), batch_size=8):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
FETCHES = """
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    out = model(torch.randn(256, 64))
    optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
    seen = [value.item() for value in out.flatten()]
"""
TINY_BATCHES = """
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())], nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(2, 16)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def run(torch_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "train.py").write_text(SMALL)
    words = ("profile", "--memory", "--budget", "full", "--out", str(folder / "run"), str(folder / "train.py"))
    return folder / "run", torch_server.neural(*words, cwd=folder, timeout=240)


def shown(server: ForkServer, run: Path, *words: str) -> str:
    done = server.neural("profile", *words, str(run), cwd=run.parent, timeout=120)
    assert done.code == 0, done.stderr
    return done.stdout


def told(server: ForkServer, folder: Path, text: str, *words: str) -> dict[str, Any]:
    (folder / "train.py").write_text(text)
    given = ("profile", "--json", "--out", str(folder / "run"), *words, "train.py")
    done = server.neural(*given, cwd=folder, timeout=240)
    assert done.code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index('{\n "schema"') :])
    return found


def test_the_table_follows_the_scripts_own_output_and_fits(run: tuple[Path, Result]) -> None:
    out = run[1].stdout
    assert run[1].code == 0, run[1].stderr
    lines = out.splitlines()
    assert lines[0] == "trained"
    assert max(map(len, lines)) <= 80
    for word in ("outside layers", "forward", "backward", "body.0", "head", "Memory of a step", "kept for backward"):
        assert word in out, word
    assert "28 steps timed of 30" in out


def test_a_run_is_shown_again_as_json(run: tuple[Path, Result], torch_server: ForkServer) -> None:
    found = json.loads(shown(torch_server, run[0], "--json"))
    assert {"steps", "phases_ms", "layers", "bottlenecks", "leaks", "gpu"} <= set(found)
    assert {"data", "forward", "loss", "backward", "optimizer", "outside"} <= set(found["phases_ms"])
    layers = {one["path"]: one for one in found["layers"]}
    assert set(layers) == {"body", "body.0", "body.1", "body.2", "head"}
    first = layers["body.0"]
    assert {"path", "type", "calls", "forward_ms", "backward_ms", "self_ms", "memory_bytes", "flops"} <= set(first)
    assert {"mean", "std", "min", "max", "total"} <= set(first["forward_ms"])
    assert (first["type"], first["calls"], first["flops"]) == ("Linear", 28, 2 * 128 * 64 * 256)
    assert first["memory_bytes"] == 128 * 256 * 4
    assert layers["body"]["total_ms"] >= layers["body"]["self_ms"]
    assert found["gpu"] == found["leaks"] == []


def test_memory_is_what_the_shapes_say(run: tuple[Path, Result], torch_server: ForkServer) -> None:
    found = json.loads(shown(torch_server, run[0], "--json"))
    memory, weights = found["memory"], 64 * 256 + 256 + 256 * 64 + 64 + 64 * 4 + 4
    assert memory["parameter_bytes"] == memory["gradient_bytes"] == 4 * weights
    assert memory["optimizer_bytes"] >= 8 * weights  # two moments
    saved = {one["layer"]: one["saved_bytes"] for one in memory["layers"]}
    assert saved["body.0"] == 128 * 64 * 4  # its input
    assert saved["body.1"] == 128 * 256 * 4  # its output, which the next layer shares
    assert saved["body.2"] == 0
    assert saved["head"] == 128 * 64 * 4  # what tanh made and keeps too: charged once
    assert memory["activation_bytes"] == sum(saved.values())
    assert memory["held_at_peak"][0] == {"layer": "body.1", "bytes": 128 * 256 * 4}
    allocated = {one["layer"]: one["allocated_bytes"] for one in memory["layers"]}
    assert allocated["body.0"] == pytest.approx(128 * 256 * 4, rel=0.1)


def test_a_csv_has_a_line_per_layer(run: tuple[Path, Result], torch_server: ForkServer) -> None:
    rows = list(csv.DictReader(io.StringIO(shown(torch_server, run[0], "--format", "csv", "-o", "-"))))
    assert len(rows) == 5
    assert {"path", "self_ms", "forward_p95_ms", "backward_mean_ms", "saved_bytes"} <= set(rows[0])
    assert float(rows[0]["self_ms"]) >= float(rows[-1]["self_ms"])


def test_a_chrome_trace_is_small_and_well_formed(run: tuple[Path, Result], torch_server: ForkServer) -> None:
    text = shown(torch_server, run[0], "--format", "chrome", "-o", "-")
    events = json.loads(text)["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in calls)
    assert {"pid", "tid", "name", "cat", "args"} <= set(calls[0])
    assert len(text) / 30 < 8_000  # bytes a step
    one = json.loads(shown(torch_server, run[0], "--format", "chrome", "--step", "7", "-o", "-"))["traceEvents"]
    assert {event["args"]["step"] for event in one if event["ph"] == "X"} == {7}


def test_a_step_that_was_not_timed_is_told_with_the_nearest(run: tuple[Path, Result], torch_server: ForkServer) -> None:
    for form, step, said in (
        ("speedscope", "99", "step 99 was not timed, the nearest one was 29"),
        ("csv", "3", "--step is for --format chrome and speedscope"),
    ):
        refused = torch_server.neural("profile", "--format", form, "--step", step, str(run[0]), cwd=run[0].parent)
        assert (refused.code, said in refused.stderr) == (2, True), refused.stderr


def test_a_speedscope_file_opens_and_closes_every_call_in_order(
    run: tuple[Path, Result], torch_server: ForkServer
) -> None:
    file = json.loads(shown(torch_server, run[0], "--format", "speedscope", "-o", "-"))
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    (profile,) = file["profiles"]
    assert (profile["type"], profile["unit"], profile["startValue"]) == ("evented", "microseconds", 0)
    open_frames, last = [], 0.0
    for event in profile["events"]:
        assert event["at"] >= last
        last = event["at"]
        if event["type"] == "O":
            open_frames.append(event["frame"])
        else:
            assert open_frames.pop() == event["frame"]
    assert open_frames == []
    assert profile["endValue"] == last
    names = {frame["name"] for frame in file["shared"]["frames"]}
    assert {"body.0 (forward)", "head (backward)", "optimizer (update)"} <= names


def test_a_page_of_html_needs_nothing_from_elsewhere(run: tuple[Path, Result], torch_server: ForkServer) -> None:
    assert "prof.html (" in shown(torch_server, run[0], "--format", "html", "-o", str(run[0].parent / "prof.html"))
    page = (run[0].parent / "prof.html").read_text()
    assert page.startswith("<!doctype html>")
    titles = ("Layer", "Memory", "Bottlenecks", "GPU", "Backend", "Distributed")
    assert [part.partition("</h2>")[0].split()[0] for part in page.split("<h2>")[1:]] == list(titles)
    assert "<h3>Phases of a step</h3>" in page
    assert "http" not in page
    assert "<script" not in page


def test_an_unknown_format_and_a_missing_script_are_refused(torch_server: ForkServer, tmp_path: Path) -> None:
    done = torch_server.neural("profile", "--format", "chrom", "train.py", cwd=tmp_path)
    assert (done.code, "did you mean 'chrome'?" in done.stderr) == (2, True)
    missing = torch_server.neural("profile", "nowhere.py", cwd=tmp_path)
    assert missing.code == 2
    assert "nowhere.py" in missing.stderr
    several = torch_server.neural("profile", "torchrun", "--nproc-per-node", "2", "train.py", cwd=tmp_path)
    assert (several.code, "neural debug torchrun ... records every rank" in several.stderr) == (2, True)


def test_the_exit_code_is_the_scripts_own(torch_server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL + "raise SystemExit(3)\n")
    done = torch_server.neural("profile", "--out", "run", "train.py", cwd=tmp_path, timeout=240)
    assert done.code == 3
    assert "outside layers" in done.stdout


def test_a_slow_loader_is_named_with_the_workers_it_needs(torch_server: ForkServer, tmp_path: Path) -> None:
    found = told(torch_server, tmp_path, SLOW_LOADER)
    first = found["bottlenecks"][0]
    assert (first["type"], first["severity"]) == ("io", "high")
    assert found["input_wait_share"] > 0.5
    assert first["details"]["workers"] == 0
    assert first["details"]["batch_ms"] == pytest.approx(found["phases_ms"]["data"])
    assert first["details"]["workers_needed"] >= 1
    assert "num_workers=" in first["recommendation"]


def test_values_fetched_one_by_one_are_named_with_their_line(torch_server: ForkServer, tmp_path: Path) -> None:
    found = told(torch_server, tmp_path, FETCHES)
    (fetching,) = [one for one in found["bottlenecks"] if "fetched" in one["summary"]]
    assert fetching["type"] == "underutilization"
    assert fetching["source"] == f"train.py:{len(FETCHES.splitlines())}"
    assert fetching["details"]["fetches_a_step"] == 1024


def test_conditions_on_tensors_are_fetches_too(torch_server: ForkServer, tmp_path: Path) -> None:
    script = FETCHES.replace("value.item() for value in out.flatten()", "1 for value in out.flatten() if value > 0")
    found = told(torch_server, tmp_path, script)
    (fetching,) = [one for one in found["bottlenecks"] if "fetched" in one["summary"]]
    assert fetching["source"] == f"train.py:{len(FETCHES.splitlines())}"


def test_tiny_batches_are_named(torch_server: ForkServer, tmp_path: Path) -> None:
    found = told(torch_server, tmp_path, TINY_BATCHES)
    (small,) = [one for one in found["bottlenecks"] if "a call of a layer takes" in one["summary"]]
    assert small["type"] == "underutilization"
    assert small["details"]["batch"] == 2
    assert "larger batches than 2" in small["recommendation"]


def test_what_lived_where_is_told_when_memory_runs_out(torch_server: ForkServer, tmp_path: Path) -> None:
    script = SMALL.replace(
        "        return self.head(", "        self.seen = getattr(self, 'seen', 0) + 1\n        return self.head("
    ).replace("torch.tanh(self.body(x))", "self._work(self.body(x))")
    script = script.replace(
        "model = Net()",
        """    def _work(self, x):
        return torch.empty(10**15) if self.seen == 5 else torch.tanh(x)
model = Net()""",
    )
    (tmp_path / "train.py").write_text(script)
    words = ("profile", "--memory", "--budget", "full", "--out", "run", "train.py")
    done = torch_server.neural(*words, cwd=tmp_path, timeout=240)
    assert done.code == 1
    assert done.stderr.index("memory ran out; what lived where") < done.stderr.index("Traceback")
    assert "body.1" in done.stderr
    found = json.loads(shown(torch_server, tmp_path / "run", "--json"))["memory"]["out_of_memory"]
    assert found["phase"] == "forward"
    assert found["layers"][0]["layer"] == "body.1"
    assert found["parameter_bytes"] > 0


def test_a_debugged_run_has_the_times_it_measured(torch_server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)
    words = ("debug", "--headless", "--budget", "full", "--out", "run", "train.py")
    assert torch_server.neural(*words, cwd=tmp_path, timeout=240).code == 0
    found = json.loads(shown(torch_server, tmp_path / "run", "--json"))
    assert found["phases_ms"]["backward"] > 0
    assert found["phases_ms"]["outside"] is None  # not measured is not zero
    assert {one["path"] for one in found["layers"]} >= {"body.0", "head"}


def test_a_neural_file_is_trained_as_long_as_was_asked(torch_server: ForkServer, tmp_path: Path) -> None:
    layers = 'Dense(8, activation="relu")\n Output(3, activation="softmax")'
    rest = 'loss: "categorical_crossentropy"\n optimizer: Adam(learning_rate=0.01)\n train { epochs: 1 batch_size: 64 }'
    (tmp_path / "small.neural").write_text(f"network Small {{ input: (6,)\n layers:\n {layers}\n {rest} }}")
    steps = []
    for words in ((), ("--epochs", "3"), ("--batch-size", "32")):
        given = ("profile", "--json", "--out", f"run{len(steps)}", *words, "small.neural")
        done = torch_server.neural(*given, cwd=tmp_path, timeout=240)
        assert done.code == 0, done.stderr
        steps.append(json.loads(done.stdout[done.stdout.index('{\n "schema"') :])["all_steps"])
    assert steps == [steps[0], 3 * steps[0], 2 * steps[0]]
    refused = torch_server.neural("profile", "--epochs", "2", "train.py", cwd=tmp_path)
    assert (refused.code, "--epochs is for .neural files" in refused.stderr) == (2, True)


def test_a_slower_run_fails_the_comparison(run: tuple[Path, Result], torch_server: ForkServer, tmp_path: Path) -> None:
    slow = SMALL.replace("    optimizer.zero_grad()", "    import time; time.sleep(0.1)\n    optimizer.zero_grad()")
    (tmp_path / "train.py").write_text(slow)
    done = torch_server.neural("profile", "--out", "run", "train.py", cwd=tmp_path, timeout=240)
    assert done.code == 0
    words = ("compare", str(run[0]), str(tmp_path / "run"), "--max-step-time-regression", "50%")
    worse = torch_server.neural(*words, cwd=tmp_path)
    assert (worse.code, "exit code 6: a step of B takes" in worse.stderr) == (6, True)
    same = torch_server.neural("compare", str(run[0]), str(run[0]), "--max-step-time-regression", "0", cwd=tmp_path)
    assert same.code == 0
    bad = torch_server.neural("compare", "a", "b", "--max-step-time-regression", "fast", cwd=tmp_path)
    assert (bad.code, "a share such as 10%" in bad.stderr) == (2, True)
