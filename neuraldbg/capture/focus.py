"""What of a layer is measured after the first updates where the user asked for some groups only: less, more often."""

from __future__ import annotations

from collections.abc import Iterable

from neuraldbg.records import Kind

# The first updates are measured with everything in them: that is where most causes of a symptom are read from.
_KINDS = {
    "gradients": frozenset({Kind.GRADIENT}),
    "dead_neurons": frozenset({Kind.ACTIVATION}),
    "anomalies": frozenset({Kind.ACTIVATION, Kind.GRADIENT}),
}
EVERYTHING = frozenset({Kind.ACTIVATION, Kind.GRADIENT})


def kinds_of(focus: Iterable[str]) -> frozenset[Kind]:
    """The kinds of layer statistics that the groups need; everything without a group."""
    wanted = [_KINDS[group] for group in focus if group in _KINDS]
    return frozenset[Kind]().union(*wanted) if wanted else EVERYTHING
