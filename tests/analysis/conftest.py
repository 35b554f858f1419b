from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments at the end of a run get all the time they need, however busy the machine is."""
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.LEAST_SECONDS", 10.0)
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 60.0)
