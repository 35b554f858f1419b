"""The columns of a trace: five tables of fixed-width rows, and the codes that stand for enum members on disk.

Codes are part of the format: append, never renumber.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from neuraldbg.records import Call, Kind, Phase

KIND_CODE: Final[dict[Kind, int]] = {
    Kind.ACTIVATION: 1,
    Kind.GRADIENT: 2,
    Kind.PARAMETER: 3,
    Kind.UPDATE: 4,
    Kind.INPUT: 5,
    Kind.TARGET: 6,
    Kind.SPAN: 7,
    Kind.SCALAR: 8,
    Kind.MARK: 9,
}
PHASE_CODE: Final[dict[Phase, int]] = {
    Phase.DATA: 1,
    Phase.FORWARD: 2,
    Phase.BACKWARD: 3,
    Phase.UPDATE: 4,
    Phase.EVAL: 5,
}
CALL_CODE: Final[dict[Call, int]] = {call: code for code, call in enumerate(Call, start=1)}

# `seq` orders everything a process recorded; `pass_id` says which root forward a row belongs to (-1: none).
_WHEN = [("step", "<i8"), ("seq", "<i8"), ("site", "<i4"), ("pass_id", "<i4")]

STATS = np.dtype(
    [
        *_WHEN,
        ("kind", "u1"),
        ("phase", "u1"),
        ("slot", "<u2"),  # which of several outputs or inputs
        ("count", "<i8"),
        ("mean", "<f8"),  # nan where the tensor has no finite value
        ("std", "<f8"),
        ("min", "<f8"),
        ("max", "<f8"),
        ("l2", "<f8"),
        ("zero_count", "<i8"),
        ("nan_count", "<i8"),
        ("inf_count", "<i8"),
        ("digest", "<u8"),  # position-sensitive hash; 0 = not computed
        ("wall_ns", "<i8"),
    ]
)
SPANS = np.dtype(
    [
        *_WHEN,
        ("phase", "u1"),
        ("depth", "u1"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("host_bytes", "<i8"),  # bytes of the output on the host; -1 = unknown
        ("device_bytes", "<i8"),
    ]
)
SCALARS = np.dtype([*_WHEN, ("value", "<f8"), ("wall_ns", "<i8")])  # site = the series
CALLS = np.dtype(
    [
        *_WHEN,  # site = the model, optimizer, loader the call is about; -1 = none
        ("call", "u1"),
        ("value", "<f8"),
        ("aux", "<f8"),
        ("digest", "<u8"),
        ("source", "<i4"),  # id of a "source" fact; -1 = unknown
        ("wall_ns", "<i8"),
        ("duration_ns", "<i8"),
    ]
)
OCTAVES: Final = 64  # bins of a histogram, one for each power of two
LOWEST_OCTAVE: Final = -40  # the first bin counts 2^-40 <= |x| < 2^-39; it and the last also what lies beyond
HISTOGRAMS = np.dtype(
    [
        *_WHEN,
        ("kind", "u1"),
        ("phase", "u1"),
        ("slot", "<u2"),
        ("count", "<i8"),  # values of the tensor
        ("looked_at", "<i4"),  # of them, spread evenly: these were counted
        ("zero_count", "<i4"),  # among those looked at, as the next
        ("bad_count", "<i4"),  # NaN and infinite
        ("octaves", f"V{2 * OCTAVES}"),  # 64 x u16: the others by the power of two of their magnitude
        ("wall_ns", "<i8"),
    ]
)

TABLES: Final[dict[str, np.dtype[np.void]]] = {
    "stats": STATS,
    "spans": SPANS,
    "scalars": SCALARS,
    "calls": CALLS,
    "histograms": HISTOGRAMS,
}
TABLE_CODE: Final[dict[str, int]] = {"facts": 0, "stats": 1, "spans": 2, "scalars": 3, "calls": 4, "histograms": 5}
