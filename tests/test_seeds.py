"""Every item of the original documents has its row in docs/seeds.md, and every row a proof that exists."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import Enum
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from neuraldbg import debug

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "seeds.md"
ITEMS = {0: 27, 1: 15, 2: 14, 3: 10, 4: 11}  # document -> how many
STATE_NO_BEHAVIOUR = {"1.12", "2.10"}  # what it costs: measured, not asserted
ROW = re.compile(r"^\| (\d\.\d+) \| (.+?) \| (.*?) ?\|$", re.MULTILINE)


def all_items() -> list[str]:
    return [f"{document}.{number}" for document, count in ITEMS.items() for number in range(1, count + 1)]


def rows(text: str) -> list[tuple[str, str, list[str]]]:
    return [(number, item, re.findall(r"`([^`]+)`", proofs)) for number, item, proofs in ROW.findall(text)]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the tests of a file, without those that are skipped or expected to fail whatever happens."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(node.name for node in functions if node.name.startswith("test_") and not _never_run(node))


def _never_run(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = [ast.unparse(each) for each in node.decorator_list]
    return any(re.match(r"pytest\.mark\.(?:skip\b|xfail)", mark) for mark in marks)


def problems(text: str) -> Iterator[str]:
    found = rows(text)
    numbers = [number for number, _, _ in found]
    yield from (f"{number} has no row" for number in all_items() if number not in numbers)
    yield from (f"{number} is no item" for number in numbers if number not in all_items())
    yield from (f"{number} stands twice" for number in set(numbers) if numbers.count(number) > 1)
    for number, _, proofs in found:
        tests = [proof for proof in proofs if "::" in proof]
        if not proofs:
            yield f"{number} has no proof"
        elif not tests and number not in STATE_NO_BEHAVIOUR:
            yield f"{number} has no test"
        yield from (f"{number}: {proof} does not exist" for proof in proofs if not exists(proof))


def exists(proof: str) -> bool:
    place, _, name = proof.partition("::")
    path = ROOT / place
    return path.is_file() and (not name or name in names_in(path))


def test_every_item_has_a_proof_that_exists() -> None:
    assert sum(ITEMS.values()) == 77
    assert list(problems(PAGE.read_text(encoding="utf-8"))) == []


def test_rows_stand_in_their_order() -> None:
    assert [number for number, _, _ in rows(PAGE.read_text(encoding="utf-8"))] == all_items()


HERE = "tests/test_seeds.py"
WHOLE = "\n".join(f"| {item} | something | `{HERE}::test_rows_stand_in_their_order` |" for item in all_items())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("| 0.1 | something | |", "0.1 has no proof"),
        ("| 0.1 | something | `docs/api.md` |", "0.1 has no test"),
        (f"| 0.1 | something | `{HERE}::test_that_is_not` |", f"0.1: {HERE}::test_that_is_not does not exist"),
        ("| 0.1 | something | `tests/test_nowhere.py::test_x` |", "0.1: tests/test_nowhere.py::test_x does not exist"),
        ("", "0.1 has no row"),
    ],
)
def test_a_row_without_its_proof_is_noticed(row: str, said: str) -> None:
    first, rest = WHOLE.split("\n", 1)
    assert list(problems(f"{first}\n{rest}")) == []
    assert list(problems(f"{row}\n{rest}")) == [said]


def test_the_stated_defaults_hold() -> None:
    from neural.profiling import BottleneckAnalyzer, MemoryLeakDetector
    from neuraldbg.analysis.anomalies.thresholds import Thresholds
    from neuraldbg.config.schema import Config
    from neuraldbg.debug import DebugConfig, VisualizationConfig

    config = Config()
    assert (config.port, config.history.inspector, config.history.anomaly) == (8050, 100, 1000)
    assert (config.websocket_interval, config.anomaly_sensitivity) == (1000, 0.95)
    assert (config.breakpoints.enabled, config.breakpoints.pause_on_condition) == (True, True)
    page = config.dashboard
    assert (page.theme, page.refresh_rate, page.max_history) == ("dark", 1.0, 1000)
    assert page.charts == ("execution_trace", "gradient_flow", "memory_profile")
    z, iqr = ([getattr(Thresholds(dial), name)(10**6, 1) for dial in (0.90, 0.95, 0.98)] for name in ("z", "iqr"))
    assert z == pytest.approx([2.5, 3.0, 3.6], rel=0.02)
    assert iqr[1] == pytest.approx(1.5, rel=0.001)
    leaks, bottlenecks = MemoryLeakDetector(), BottleneckAnalyzer()
    assert (leaks.threshold_mb, leaks.window_size) == (10.0, 10)
    assert bottlenecks.threshold_percentile == 90.0
    plots = VisualizationConfig()
    assert (plots.output_directory, plots.image_format) == ("./debug_plots", "png")
    assert (plots.plot_width, plots.plot_height, plots.font_size) == (800, 600, 12)
    limits = DebugConfig()
    assert (limits.extreme_value, limits.tensor_vanishing, limits.tensor_exploding) == (1e10, 1e-8, 100.0)


def defaults(function: Callable[..., object]) -> dict[str, object]:
    given = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in given if each.default is not each.empty}


def test_the_stated_defaults_of_calls_hold() -> None:
    from neural.cloud.cloud_execution import CloudExecutor
    from neural.dashboard.dashboard import start_dashboard_server
    from neural.profiling import LayerProfiler
    from neuraldbg.debug import TerminalVisualizer

    made = {"environment": None, "timeout": 300, "retry_attempts": 3}
    assert defaults(CloudExecutor).items() >= made.items()
    assert defaults(CloudExecutor.start_debug_dashboard) == {"backend": None, "setup_tunnel": True, "port": 8050}
    assert defaults(CloudExecutor.setup_ngrok_tunnel) == {"port": 8050, "auth_token": None}
    assert defaults(start_dashboard_server) == {"host": "localhost", "port": 5001}
    assert (
        defaults(LayerProfiler.get_slowest_layers) == defaults(LayerProfiler.get_most_variable_layers) == {"top_n": 5}
    )
    terminal = TerminalVisualizer()
    assert (terminal.width, terminal.height) == (80, 24)


WORDS = {  # of the toolkit: every case of the original, by name
    "AlertSeverity": "Info Warning Critical",
    "BottleneckType": "CpuBound MemoryBound IoBound GpuBound NetworkBound DataLoading ModelComputation "
    "GradientComputation",
    "Comparison": "Greater Less Equal GreaterEqual LessEqual",
    "ConvergenceStatus": "Converging Converged Diverging Oscillating Plateau Unknown",
    "GradientTrend": "Unknown Increasing Decreasing Stable",
    "HookAction": "InspectTensor TrackGradients RecordActivations SaveSnapshot Alert CustomCallback PauseTraining",
    "HookCondition": "LossThreshold GradientNormThreshold MemoryThreshold StepRange Custom",
    "HookResult": "Success Error Skipped",
    "HookTrigger": "EveryForward EveryBackward EveryNSteps Conditional Once LayerSpecific",
    "LayerHealth": "Healthy Warning Critical Unknown",
    "TrainingStability": "Stable Unstable HighVariance Unknown",
}
FIELDS = {  # of its records, in the original's order
    "GradientFlow": "layer_name step gradient_norm gradient_mean gradient_std gradient_max gradient_min "
    "dead_neurons_ratio active_neurons_ratio timestamp",
    "HookStats": "total_executions last_execution_step total_execution_time_ms avg_execution_time_ms errors",
    "ModelArchitectureInfo": "total_parameters trainable_parameters model_size_mb layer_count layer_types depth width "
    "activation_functions",
    "ModelPerformanceMetrics": "training_step loss accuracy learning_rate batch_size throughput_samples_per_sec "
    "memory_usage_mb gpu_utilization timestamp",
    "ProfilerReport": "total_events total_runtime statistics bottlenecks slowest_layers memory_efficiency "
    "recommendations",
    "TensorComparison": "tensor1_id tensor2_id mse mae max_diff cosine_similarity correlation shape_match dtype_match",
    "TensorDistribution": "histogram percentiles outliers skewness kurtosis",
    "TensorInfo": "id name layer_name operation timestamp stats distribution gradient_stats",
    "TensorStats": "shape dtype total_elements mean std min max median l1_norm l2_norm infinity_norm nan_count "
    "inf_count zero_count memory_usage_bytes sparsity",
    "TrainingDynamics": "convergence_status training_stability learning_efficiency overfitting_indicators "
    "underfitting_indicators plateau_detection",
    "VisualizationConfig": "output_directory image_format plot_width plot_height font_size color_scheme",
}


@pytest.mark.parametrize("name", WORDS)
def test_the_words_of_the_toolkit_are_the_originals(name: str) -> None:
    kind = getattr(debug, name)
    words = WORDS[name].split()
    assert all(hasattr(kind, word) for word in words)
    if issubclass(kind, Enum):
        assert sorted(kind.__members__) == sorted(words)


@pytest.mark.parametrize("name", FIELDS)
def test_the_records_of_the_toolkit_are_the_originals(name: str) -> None:
    own = [each.name for each in fields(getattr(debug, name))]
    wanted = FIELDS[name].split()
    assert [each for each in own if each in wanted] == wanted


def test_the_lines_that_install_something_have_an_answer() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "`pip install neuraldbg` (that name is another project's: ours is" in PAGE.read_text(encoding="utf-8")
    assert 'name = "neural-debugger"' in project
    assert '"nvidia-ml-py' in project  # what `pip install pynvml` is for
    assert find_spec("pynvml") is not None
