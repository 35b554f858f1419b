"""vanishing_gradient"""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.arch_reading import gradient_rms, weights
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Kind, Severity, SiteKind

FADED = 1e-4  # of the strongest layer's root-mean-square gradient
LAYERS = 3


@symptom("vanishing_gradient")
def vanishing_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Gradients fade on the way to the input.

    Finds: weight layers near the input whose gradient is ten thousand times smaller than that of the strongest layer;
    with a threshold of the user's, layers whose gradient norm stays below it.
    Why it matters: those layers no longer learn, whatever the learning rate.
    Decides by: the root-mean-square gradient of each weight at the first measured update, relative to the strongest.
    Usual cures: ReLU or GELU instead of sigmoid and tanh, normalisation, residual connections, another initialisation.
    """
    rms = gradient_rms(evidence)
    known = [(weight, rms[weight.site]) for weight in weights(evidence) if weight.site in rms]
    strongest = max((value for _, value in known), default=0.0)
    faded = [(weight, value) for weight, value in known if 0 < value < FADED * strongest]
    if len(known) >= LAYERS and faded:
        weight, value = faded[0]
        yield Finding(
            "vanishing_gradient",
            Severity.INFO,
            f"the gradient of {weight.layer} is {strongest / value:,.0f} times smaller than the strongest layer's",
            step=0,
            layer=weight.layer,
            evidence={"gradient": value, "strongest": strongest, "layers_faded": len(faded), "layers": len(known)},
            confidence=0.9,
        )
    yield from _below_threshold(evidence)


def _below_threshold(evidence: Evidence) -> Iterator[Finding]:
    limit = evidence.thresholds.vanishing
    if limit is None:
        return
    rows = evidence.stats(Kind.GRADIENT)
    for at in range(len(rows["step"])):
        site = evidence.sites.get(int(rows["site"][at]))
        if site is not None and site.kind is SiteKind.PARAMETER and rows["l2"][at] < limit:
            yield Finding(
                "vanishing_gradient",
                Severity.WARNING,
                f"the gradient norm of {evidence.name(site)} is below {limit:g}",
                step=int(rows["step"][at]),
                layer=evidence.layer_of(site),
                evidence={"gradient_norm": float(rows["l2"][at]), "threshold": limit},
                confidence=0.9,
            )
            return
