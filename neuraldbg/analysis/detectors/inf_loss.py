"""The loss is infinite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.nan_loss import first_bad
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding


@symptom("inf_loss")
def inf_loss(evidence: Evidence) -> Iterator[Finding]:
    """The loss is infinite.

    Finds: a backward that was started from a loss of plus or minus infinity.
    Why it matters: its gradients are infinite or NaN; the next update writes that into the weights.
    Decides by: the value of the loss at each backward call.
    Usual cures: see the cause named beside it: a log of zero, an overflow, or a run that diverged.
    """
    yield from first_bad(evidence, "inf_loss", "infinite", np.isinf)
