"""What helps against a symptom, with the reason this run gives for it."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.causes.arch_reading import activations, first_activations, stack
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.records import Finding, Fix


@cure("vanishing_gradient")
def vanishing_gradient(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """Changes of the architecture that this network lacks."""
    shape = stack(evidence)
    bounded = [fact for fact in activations(evidence) if fact["op"] in ("Sigmoid", "Tanh")]
    if bounded:
        most = {"Sigmoid": "0.25", "Tanh": "1"}[bounded[0]["op"]]
        yield Fix(
            f"ReLU or GELU instead of the {len(bounded)} {bounded[0]['op'].lower()} activations: "
            f"their derivative is at most {most} and shrinks the gradient in every layer",
            auto="S",
        )
    if shape is not None and not shape["normalised"]:
        yield Fix(
            f"BatchNorm or LayerNorm from {finding.layer} on: the network has no normalisation, so the scale of its "
            f"{shape['weighted']} weighted layers multiplies up",
            auto="S",
        )
    layers = finding.evidence.get("layers")
    if isinstance(layers, float | int) and layers >= 6:
        yield Fix(f"Skip connections: the gradient has to pass {layers} layers one after the other", auto="S")
        yield Fix("Fewer layers: compare with a network of half the depth", auto="D")


@cure("dead_units")
def dead_units(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """Dead from the start speaks for the initialisation or the input, dead later for the step size."""
    first = [fact for fact in first_activations(evidence) if evidence.name(fact.get("fed_by")) == finding.layer]
    dead, units = finding.evidence.get("dead"), finding.evidence.get("units")
    if not isinstance(dead, float | int):
        return  # below a limit of the user's own: nothing says that units are dead
    if first and isinstance(dead, float | int) and (first[0].get("dead") or 0) >= 0.8 * dead:
        yield Fix(
            f"kaiming_uniform_ weights and zero biases for {finding.layer}, and inputs of unit scale: "
            f"{first[0]['dead']} of the {dead} units were dead before the first update",
            auto="S",
        )
    else:
        yield Fix(
            f"A smaller learning rate: the units after {finding.layer} died in training, pushed there by an update",
            auto="D",
        )
    yield Fix(
        f"LeakyReLU or GELU after {finding.layer}: they keep a slope below zero, "
        f"so that the {dead} of {units} units can come back",
        auto="S",
    )


@cure("saturated_units")
def saturated_units(finding: Finding, _: Evidence) -> Iterator[Fix]:
    share = finding.evidence.get("flat_share")
    told = f"{share:.0%} of its outputs have almost no slope" if isinstance(share, float) else "it has almost no slope"
    yield Fix(f"Normalise before the activation after {finding.layer}, or start with smaller weights: {told}", auto="S")
    yield Fix(f"ReLU or GELU after {finding.layer}: not flat on the positive side", auto="S")
