"""Memory that rises with the steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Curve, Evidence
from neuraldbg.records import Finding, Severity

LEAST_BYTES = 32 * 2**20
_SETTLED = 10  # updates until caches, optimizer state and allocators have what they need


@symptom("memory_growth")
def memory_growth(evidence: Evidence) -> Iterator[Finding]:
    """Memory rises steadily with the steps.

    Finds: runs whose memory on the host or the device keeps growing after the first updates.
    Why it matters: sooner or later the process is killed.
    Decides by: the memory of the process at the updates that were measured: it must rise nearly all the way and by tens
    of megabytes. Growing replay buffers and data loaded on demand do the same on purpose.
    Usual cures: keep numbers instead of tensors with graphs; bound caches and buffers.
    """
    for series, where in (("device_bytes", "device"), ("rss_bytes", "host")):
        grown = _growth(evidence.curve(series))
        if grown is None:
            continue
        rise, steps = grown
        yield Finding(
            "memory_growth",
            Severity.INFO,
            f"memory on the {where} rose by {rise / 2**20:.0f} MB over {steps} updates",
            step=_SETTLED,
            evidence={
                "rise_mb": round(rise / 2**20, 1),
                "updates": steps,
                "per_update_kb": round(rise / steps / 2**10, 2),
            },
            confidence=0.5,
        )
        return


def _growth(curve: Curve) -> tuple[float, int] | None:
    settled = curve.steps >= _SETTLED
    values, steps = curve.values[settled], curve.steps[settled]
    if len(values) < 8:
        return None
    rise = float(values[-1] - values[0])
    rising = float((np.diff(values) > 0).mean())
    order = float(np.corrcoef(np.arange(len(values)), values)[0, 1]) if np.ptp(values) > 0 else 0.0
    if rise < max(LEAST_BYTES, 0.05 * values[0]) or order < 0.9 or rising < 0.5:
        return None
    return rise, int(steps[-1] - steps[0])
