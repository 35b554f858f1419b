"""Time lost outside the network: waiting for data, fetching single values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity, SiteKind

HALF = 0.5
ENOUGH_BATCHES = 10
LEAST_S = 1.0  # of waiting in all: below it nobody cares
FETCHES_A_STEP = 20
FETCH_SHARE = 0.25


@cause("slow_dataloader", group="sys", auto="R", explains=("data_bound",))
def slow_dataloader(evidence: Evidence) -> Iterator[Finding]:
    """Steps wait for data.

    Finds: a DataLoader whose next() takes more than half of the time of the training loop.
    Why it matters: the network idles; a faster machine or a smaller model would change nothing.
    Decides by: the time measured inside each next() of the loader over the wall time between its first and last batch,
    without the time of the debugger.
    Usual cures: num_workers > 0 with persistent_workers, move decoding and augmentation out of __getitem__ or cache
    them, larger batches, pin_memory on a GPU.
    """
    for site in evidence.of_kind(SiteKind.LOADER):
        waited = waiting_for(evidence, site.id)
        if waited is None or waited["share"] <= HALF or waited["seconds"] < LEAST_S:
            continue
        fact: dict[str, Any] = next((f for f in evidence.facts("loader") if f["site"] == site.id), {})
        yield Finding(
            "slow_dataloader",
            Severity.WARNING,
            f"{waited['share']:.0%} of the training time is spent waiting for {site.path}",
            step=waited["step"],
            source=site.source,
            evidence={
                "loader": site.path,
                "share_of_time": waited["share"],
                "seconds_waited": waited["seconds"],
                "milliseconds_a_batch": waited["each_ms"],
                "workers": "unknown" if fact.get("workers") is None else int(fact["workers"]),
            },
            confidence=0.93,
            inference="The data set's __getitem__ and collate run in the training process, one batch at a time."
            if fact.get("workers") == 0
            else "The workers cannot keep up with the network.",
        )


def waiting_for(evidence: Evidence, site: int) -> dict[str, Any] | None:
    batches = evidence.of_call(Call.BATCH, site=site)
    if len(batches["step"]) < ENOUGH_BATCHES:
        return None
    steps = evidence.of_call(Call.STEP, Call.BACKWARD)["wall_ns"]
    begin, end = batches["wall_ns"][0], batches["wall_ns"][-1]
    if not ((steps >= begin) & (steps <= end)).any():
        return None  # an evaluation loader
    waits = batches["duration_ns"][1:].astype(np.float64)  # the first one starts workers and reads ahead
    whole = float(end - begin)
    slow = np.flatnonzero(waits > np.median(waits) / 2)
    return {
        "share": min(float(waits.sum()) / whole, 1.0) if whole > 0 else 0.0,
        "seconds": float(waits.sum()) / 1e9,
        "each_ms": float(np.median(waits)) / 1e6,
        "step": int(batches["step"][1:][slow[0]]) if len(slow) else 0,
    }


@cause("host_sync_stall", group="sys", auto="S", explains=())
def host_sync_stall(evidence: Evidence) -> Iterator[Finding]:
    """The loop stops again and again to fetch single values.

    Finds: many `.item()`, `.tolist()`, `.cpu()` calls or prints of tensors in every step that together take a large
    share of the run's time.
    Why it matters: each one makes the host wait until the device has caught up (and on any device costs more than the
    arithmetic it serves): the pipeline runs dry.
    Decides by: the calls your own lines make, counted, and the time spent inside them.
    Usual cures: keep metrics as tensors and fetch them once every N steps; log less often; vectorise loops over
    elements.
    """
    fact = evidence.fact("host_fetches")
    times = evidence.curve("step_time_s").values
    duration = float(times[np.isfinite(times)].sum())
    if fact is None or duration <= 0 or evidence.updates < ENOUGH_BATCHES:
        return
    per_step, share = fact["calls"] / evidence.updates, fact["seconds"] / duration
    if per_step < FETCHES_A_STEP or share < FETCH_SHARE or fact["seconds"] < LEAST_S / 2:
        return
    line = fact["lines"][0][0] if fact.get("lines") else None
    yield Finding(
        "host_sync_stall",
        Severity.WARNING,
        f"{per_step:,.0f} values are fetched one by one in every step, taking {min(share, 1):.0%} of the step time",
        step=0,
        source=line,
        evidence={"fetches_a_step": per_step, "share_of_time": share, "seconds": fact["seconds"]},
        confidence=0.85,
        inference="The host waits for each value instead of queueing work.",
    )
