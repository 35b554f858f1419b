from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments at the end of a run get the processor time they always get, however busy the machine is."""
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 60.0)
