"""Much of the time goes into waiting for data."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.system import LEAST_S, waiting_for
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity, SiteKind

SHARE = 0.3


@symptom("data_bound")
def data_bound(evidence: Evidence) -> Iterator[Finding]:
    """Much of the time goes into waiting for data.

    Finds: a loader whose next() takes a large share of the time of the training loop.
    Why it matters: the network idles meanwhile.
    Decides by: the time measured inside each next() over the time between the first and the last batch.
    Usual cures: see slow_dataloader.
    """
    for site in evidence.of_kind(SiteKind.LOADER):
        waited = waiting_for(evidence, site.id)
        if waited is None or waited["share"] < SHARE or waited["seconds"] < LEAST_S:
            continue
        yield Finding(
            "data_bound",
            Severity.INFO,
            f"{waited['share']:.0%} of the training time is spent waiting for {site.path}",
            step=waited["step"],
            source=site.source,
            evidence={"share_of_time": waited["share"], "seconds_waited": waited["seconds"]},
            confidence=0.9,
        )
        return
