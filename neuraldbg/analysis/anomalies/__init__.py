"""Anomaly detection over any metrics of any layer: z-score, interquartile range, isolation forest."""

from __future__ import annotations

from neuraldbg.analysis.anomalies.detector import AnomalyDetector, Judgement
from neuraldbg.analysis.anomalies.recorded import Anomaly, anomalies_of
from neuraldbg.analysis.anomalies.watch import AnomalyReport, AnomalyWatch, survey

__all__ = ["Anomaly", "AnomalyDetector", "AnomalyReport", "AnomalyWatch", "Judgement", "anomalies_of", "survey"]
