"""A detector is extended as the dashboard's guide shows it, by people who write types and by those who do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuraldbg import AnomalyDetector

ROOT = Path(__file__).parents[2]
SUBCLASSES = """
from collections.abc import Mapping
from typing import Any

from neural.dashboard.dashboard import AnomalyDetector, anomaly_detector
from neuraldbg import AnomalyDetector as Public


class WithDict(AnomalyDetector):
    def detect_custom_anomaly(self, layer_name: str, metrics: dict[str, float]) -> tuple[bool, float]:
        return metrics["flops"] > 1e9, metrics["flops"] / 1e9


class WithMapping(Public):
    def detect_custom_anomaly(self, layer_name: str, metrics: Mapping[str, Any]) -> tuple[bool, float] | None:
        return None


result = anomaly_detector.detect_anomalies("Conv2D_1", {"flops": 1.0})
if result["is_anomaly"]:
    print(f"Something unusual in Conv2D_1: {result['scores']}")
loaded: WithDict = WithDict.load("model.npz")
"""


def test_typed_subclasses_pass_a_strict_type_checker(tmp_path: Path) -> None:
    (tmp_path / "extended.py").write_text(SUBCLASSES)
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "extended.py")]
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    env = {"MYPYPATH": str(ROOT), "PATH": ""}
    checked = subprocess.run([*command, *config], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr


class Untyped(AnomalyDetector):
    def detect_custom_anomaly(self, layer_name, metrics):  # type: ignore[no-untyped-def]
        return metrics["flops"] > 10, metrics["flops"] / 10


class Wordless(AnomalyDetector):
    def detect_custom_anomaly(self, layer_name: str, metrics: Any) -> tuple[bool, float] | None:
        return None if layer_name == "quiet" else (True, 2.0)


def test_a_subclass_has_its_say() -> None:
    assert Untyped().detect_anomalies("a", {"flops": 30}) == {"is_anomaly": True, "scores": {"custom": 3.0}}
    assert not Untyped().detect_anomalies("a", {"flops": 1})["is_anomaly"]
    assert Wordless().detect_anomalies("quiet", {"flops": 30}) == {"is_anomaly": False, "scores": {}}


def test_the_original_import_path_gives_one_detector_with_the_configured_dial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("anomaly_sensitivity: 0.9\n")
    monkeypatch.chdir(tmp_path)
    from neural.dashboard import dashboard

    monkeypatch.delitem(vars(dashboard), "anomaly_detector", raising=False)
    first = dashboard.anomaly_detector
    assert (first.sensitivity, first.history) == (0.9, 1000)
    assert dashboard.anomaly_detector is first
    assert first.detect_anomalies("Conv2D_1", {"grad_norm": float("nan")})["is_anomaly"]
    monkeypatch.delitem(vars(dashboard), "anomaly_detector")
    with pytest.raises(AttributeError, match="anomaly_detecto"):
        dashboard.anomaly_detecto  # noqa: B018
