"""What went wrong, asked of a session: findings, hypotheses, chains, couplings, anomalies."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from pathlib import Path

from neuraldbg.analysis.anomalies import Anomaly, AnomalyDetector, AnomalyWatch
from neuraldbg.analysis.causality import Coupling, SemanticEvent
from neuraldbg.analysis.evidence import Thresholds
from neuraldbg.analysis.findings import strict
from neuraldbg.analysis.results import CausalHypothesis, Verdict
from neuraldbg.analysis.summary import summarise
from neuraldbg.analysis.why import Why
from neuraldbg.config import load_config
from neuraldbg.control.gate import Gate
from neuraldbg.trace import Trace
from neuraldbg.trace.findings import write_findings


class Reasons(ABC):
    """Answers from the recorded run of whoever inherits it."""

    _vanishing: float | None
    _exploding: float | None
    _closed: bool
    _gate: Gate
    _unusual: AnomalyWatch | None = None

    @property
    @abstractmethod
    def trace(self) -> Trace: ...

    @property
    @abstractmethod
    def run_dir(self) -> Path: ...

    @property
    @abstractmethod
    def step(self) -> int: ...

    @property
    def _why(self) -> Why:
        return Why(self.trace, self._limits)

    @property
    def _limits(self) -> Thresholds:
        return Thresholds(vanishing=self._vanishing, exploding=self._exploding)

    def diagnose(self) -> Verdict:
        """The state of the run in one sentence, with the findings behind it."""
        summary = summarise(self.trace, alive=not self._closed, thresholds=self._limits)
        write_findings(self.run_dir, [strict(one) for one in summary.findings])
        for one in summary.findings:
            self._gate.found(str(one["kind"]), str(one["summary"]))
        return Verdict(summary.verdict.state, summary.verdict.headline, summary.findings)

    def anomalies(self, detector: AnomalyDetector | None = None) -> list[Anomaly]:
        """What is unusual in the updates so far, earliest first. A `detector` of your own looks at all of them; without
        one, sensitivity and history are as configured, and each call looks only at what is new."""
        trace, done = self.trace, None if self._closed else self.step - 1  # the current one is not over
        if detector is not None:
            own = AnomalyWatch(detector)
            own.look(trace, through=done)
            return list(own.found)
        if self._unusual is None:
            config = load_config()
            self._unusual = AnomalyWatch(AnomalyDetector(config.anomaly_sensitivity, config.history.anomaly))
        self._unusual.look(trace, through=done)
        return list(self._unusual.found)

    def explain_failure(self, type: str | None = None) -> list[CausalHypothesis]:
        """Hypotheses for one sort of failure (`vanishing_gradients`, `exploding_gradients`, ..., or an id that
        `neural explain` lists) or for all, most likely first; empty when there is none."""
        return self._why.explain(type)

    def get_root_causes(self) -> list[CausalHypothesis]:
        """What is held to be the cause, most likely first; empty when nothing is wrong or nothing is proven."""
        return self._why.explain()

    def get_causal_hypotheses(self) -> list[CausalHypothesis]:
        """Every hypothesis about what is wrong, most likely first."""
        return self._why.explain()

    def trace_causal_chain(self, type: str | None = None) -> list[str]:
        """What came first and what it led to, earliest first, for a sort of failure; empty when it did not happen."""
        return self._why.chain(type)

    def get_events(self) -> list[SemanticEvent]:
        """Changes of state that were seen (gradients vanish, activations die, the loss diverges), earliest first."""
        return self._why.events

    def detect_coupled_failures(self, window: int = 5) -> list[Coupling]:
        """Failures of different sorts that began within `window` steps of each other: changes of state, the causes that
        were found and what they led to."""
        return self._why.coupled(window)

    def export_mermaid_causal_graph(self, path: str | os.PathLike[str] | None = None) -> str:
        """The causal graph in Mermaid's language; written to `path` where one is given."""
        graph = self._why.mermaid()
        if path is not None:
            Path(path).write_text(graph, encoding="utf-8")
        return graph

    def export_aquarium_package(self, path: str | os.PathLike[str]) -> Path:
        """Events, hypotheses, couplings, first failure and losses as one JSON file."""
        Path(path).write_text(json.dumps(strict(self._why.package()), indent=1), encoding="utf-8")
        return Path(path)
