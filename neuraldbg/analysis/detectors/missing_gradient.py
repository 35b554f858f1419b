"""Trainable parameters without a gradient."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@symptom("missing_gradient")
def missing_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Trainable parameters have no gradient when the optimizer steps.

    Finds: parameters of an optimizer with requires_grad whose `.grad` is None at step().
    Why it matters: step() leaves them as they are. That is right for a head which is not used yet, and wrong for a
    layer that should learn.
    Decides by: the set of such parameters at the last step that was looked at.
    Usual cures: use the layer in the loss, remove what cuts the graph, or take it out of the optimizer.
    """
    last = {fact["optimizer"]: fact for fact in evidence.facts("missing_gradients")}
    for fact in last.values():
        sites = [site for site in fact["parameter_sites"] if site in evidence.sites]
        if not sites:
            continue
        layers = list(dict.fromkeys(name for site in sites if (name := evidence.layer_of(site)) is not None))
        yield Finding(
            "missing_gradient",
            Severity.INFO,
            f"{len(sites)} trainable parameters have no gradient at step(), first in {layers[0] if layers else '?'}",
            step=fact["step"],
            layer=layers[0] if layers else None,
            evidence={"parameters": len(sites), "layers": ", ".join(layers[:8])},
            confidence=0.5,
        )
