"""The commands on `.neural` files, in a process of their own: what they print, write and exit with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import neuraldbg

ROOT = Path(__file__).parents[2]
AS_SCRIPT = "import sys; sys.argv[0] = 'neural'; from neuraldbg.surfaces.cli import main; main()"
MODEL = """network Small {
    input: (6,)
    layers:
        Dense(8, activation="relu")
        Output(3, activation="softmax")
    loss: "categorical_crossentropy"
    optimizer: Adam(learning_rate=0.01)
    metrics: ["accuracy"]
    train { epochs: 2 batch_size: 64 }
}
"""


def neural(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", AS_SCRIPT, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "small.neural").write_text(MODEL)
    return tmp_path


def test_run_trains_and_says_that_the_data_is_made_up(model: Path) -> None:
    done = neural("run", "small.neural", "--steps", "4", cwd=model)
    assert done.returncode == 0, done.stderr
    assert "Small: 6 -> 3, 83 parameters" in done.stdout
    assert "synthetic data: 2,048 made-up samples" in done.stdout
    assert "epoch 2/2: loss " in done.stdout
    assert "accuracy" in done.stdout
    assert sorted(path.name for path in model.iterdir()) == ["small.neural"]


def test_run_tells_its_epochs_as_json(model: Path) -> None:
    done = neural("run", "small.neural", "--steps", "2", "--epochs", "1", "--json", cwd=model)
    assert [told["epoch"] for told in json.loads(done.stdout)["Small"]] == [1]


def test_compile_writes_code_and_a_dry_run_does_not(model: Path) -> None:
    dry = neural("compile", "small.neural", "-b", "pytorch", "--dry-run", cwd=model)
    assert "class Small(nn.Module):" in dry.stdout
    assert not (model / "out.py").exists()
    done = neural("compile", "small.neural", "-b", "pytorch", "-o", "out.py", cwd=model)
    assert done.stdout == "out.py\n"
    assert (model / "out.py").read_text() == dry.stdout


def test_validate_only_checks(model: Path) -> None:
    done = neural("validate", "small.neural", cwd=model)
    assert (done.returncode, done.stdout) == (0, "Small: 6 -> 3, 83 parameters\nsmall.neural: valid\n")
    told = json.loads(neural("validate", "small.neural", "--json", cwd=model).stdout)
    assert told["valid"]
    assert told["networks"][0]["parameters"] == 83


@pytest.mark.parametrize("command", ["validate", "run", "compile", "visualize", "debug"])
@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("network N { input: (4,) layers: Dense(3 }", 2, "1:41"),
        ("network N { input: (4,)\n layers: Conv2D(3, 3)\n loss: mse }", 3, "2:10"),
        (None, 5, "no such file"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_exits_as_documented(
    command: str, text: str | None, code: int, says: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "m.neural").write_text(text)
    done = neural(command, "m.neural", cwd=tmp_path)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("neural: ")
    assert [path.name for path in tmp_path.iterdir()] == ([] if text is None else ["m.neural"])


HIDDEN = """import importlib.util, sys
find = importlib.util.find_spec
hidden = ("tensorflow", "jax", "onnxruntime")
importlib.util.find_spec = lambda name, package=None: None if name in hidden else find(name, package)
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "-b", "tensorflow"), "pip install 'neural-debugger[tensorflow]'"),
        (("debug", "--backend", "jax"), "pip install 'neural-debugger[jax]'"),
        (("run", "--backend", "onnx"), "pip install 'neural-debugger[onnx]'"),
        (("run", "-b", "tensorflaw"), "did you mean 'tensorflow'?"),
        (("compile", "-b", "cobol"), "there is pytorch, tensorflow, jax, onnx"),
    ],
)
def test_a_backend_that_is_not_here_is_code_4_and_says_what_to_install(
    words: tuple[str, ...], says: str, model: Path
) -> None:
    command = [sys.executable, "-c", HIDDEN + AS_SCRIPT, words[0], "small.neural", *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=model, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, says in done.stderr) == (4, True), done.stderr


@pytest.mark.parametrize(
    ("backend", "holds"),
    [
        ("tensorflow", ['"KERAS_BACKEND", "tensorflow"', 'layers.Dense(8, activation="relu", name="Dense_1")']),
        ("jax", ['"KERAS_BACKEND", "jax"', "from_logits=True"]),
        ("onnx", ["class Small(nn.Module):", "torch.onnx.export(", "onnxruntime.InferenceSession(path)"]),
    ],
)
def test_compile_writes_code_for_a_backend_that_need_not_be_here(backend: str, holds: list[str], model: Path) -> None:
    done = neural("compile", "small.neural", "-b", backend, "-o", "out.py", cwd=model)
    assert done.returncode == 0, done.stderr
    text = (model / "out.py").read_text()
    compile(text, "out.py", "exec")
    assert [part for part in holds if part not in text] == []


def test_a_search_without_optuna_is_code_4_and_names_the_extra(model: Path) -> None:
    if __import__("importlib.util").util.find_spec("optuna"):
        pytest.skip("Optuna is here")
    (model / "open.neural").write_text(MODEL.replace("Dense(8", "Dense(HPO(choice(4, 8))"))
    done = neural("run", "open.neural", "--hpo", cwd=model)
    assert done.returncode == 4
    assert "neural-debugger[hpo]" in done.stderr
    plain = neural("run", "open.neural", "--steps", "1", cwd=model)
    assert "its first choice is taken: 4" in plain.stderr


def test_visualize_draws_a_tree_and_pictures(model: Path) -> None:
    text = neural("visualize", "small.neural", cwd=model).stdout.splitlines()
    assert text[0].startswith("Small: 6 -> 3; 83 parameters")
    assert text[2].split() == ["|-", "Dense_1", "(relu)", "8", "56", "104", "4"]
    for form, start in (("svg", "<svg"), ("dot", "digraph Small"), ("html", "<!doctype html>")):
        done = neural("visualize", "small.neural", "-f", form, cwd=model)
        assert done.stdout == f"small.{form}\n"
        assert (model / f"small.{form}").read_text().startswith(start)
    assert neural("visualize", "small.neural", "-f", "png", cwd=model).stdout == "small.png\n"
    assert (model / "small.png").read_bytes().startswith(b"\x89PNG")
    wrong = neural("visualize", "small.neural", "-f", "htm", cwd=model)
    assert (wrong.returncode, "did you mean html?" in wrong.stderr) == (2, True)


def test_networks_of_the_same_name_get_a_file_each(model: Path) -> None:
    (model / "twice.neural").write_text(MODEL + MODEL)
    done = neural("compile", "twice.neural", cwd=model)
    assert done.stdout.splitlines() == ["twice_small.py", "twice_small_2.py"]
    assert (model / "twice_small_2.py").read_text() == (model / "twice_small.py").read_text()


def test_fmt_writes_in_place_once(model: Path) -> None:
    (model / "small.neural").write_text(MODEL.replace("    ", "\t").replace('"relu")', "'relu')  # kept"))
    assert neural("fmt", "small.neural", "--check", cwd=model).returncode == 1
    assert neural("fmt", "small.neural", cwd=model).returncode == 0
    written = (model / "small.neural").read_text()
    assert "# kept" in written
    assert neural("fmt", "small.neural", "--check", cwd=model).returncode == 0


# -- under the debugger ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_mnist_example_ends_healthy_with_a_valid_session(tmp_path: Path) -> None:
    example = ROOT / "examples" / "mnist.neural"
    done = neural("debug", str(example), "--headless", "--export", "s.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    session = json.loads((tmp_path / "s.json").read_text())
    schema = Path(neuraldbg.__file__).parent / "surfaces" / "reports" / "session.schema.json"
    jsonschema.validate(session, json.loads(schema.read_text()))
    assert session["verdict"]["state"] == "healthy", session["verdict"]
    found = {each["kind"]: each for each in session["findings"]}
    softmax = found["softmax_before_cross_entropy"]
    assert (softmax["severity"], softmax["layer"], softmax["source"]) == ("info", "Output_1", "mnist.neural:14")
    layers = {each["path"]: each for each in session["layers"]}
    assert {"Conv2D_1", "MaxPooling2D_1", "Flatten_1", "Dense_1", "Output_1"} <= set(layers)


def test_a_finding_points_at_the_line_of_the_file(tmp_path: Path) -> None:
    text = MODEL.replace("Adam(learning_rate=0.01)", "SGD(learning_rate=5e9)")
    (tmp_path / "hot.neural").write_text(text)
    done = neural("debug", "hot.neural", "--headless", "--export", "s.json", "--fail-on", "critical", cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    first = json.loads((tmp_path / "s.json").read_text())["findings"][0]
    assert first["source"] == "hot.neural:7"


@pytest.mark.parametrize(
    "options",
    [
        ("--gradients", "--vanishing-threshold", "1e-5"),
        ("--dead-neurons", "--activation-threshold", "0.01"),
        ("--anomalies", "--alert-on-nan", "--theme", "dark"),
        ("--backend", "pytorch", "--port", "8888", "--network", "Small"),
    ],
)
def test_the_options_of_the_seed_may_follow_the_file(options: tuple[str, ...], model: Path) -> None:
    done = neural("debug", "small.neural", "--headless", *options, cwd=model)
    assert done.returncode == 0, done.stderr
    assert "Verdict" in done.stderr


def test_options_of_files_are_refused_for_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = neural("debug", "--dataset", "MNIST", "train.py", cwd=tmp_path)
    assert (done.returncode, "--dataset is for .neural files" in done.stderr) == (2, True)


def test_a_command_called_run_does_not_hide_the_way_commands_are_run() -> None:
    code = "import neuraldbg.surfaces.cli.run, neuraldbg.surfaces.cli as c; c.main(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
