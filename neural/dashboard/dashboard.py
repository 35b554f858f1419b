"""`anomaly_detector` and its class under the original's import path."""

from __future__ import annotations

from typing import Any

from neuraldbg.analysis.anomalies import AnomalyDetector

__all__ = ["AnomalyDetector", "anomaly_detector"]

anomaly_detector: AnomalyDetector  # one for the process, made when it is first asked for


def __getattr__(name: str) -> Any:
    if name != "anomaly_detector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from neuraldbg.config import load_config

    config = load_config()
    made = globals()[name] = AnomalyDetector(config.anomaly_sensitivity, config.history.anomaly)
    return made
