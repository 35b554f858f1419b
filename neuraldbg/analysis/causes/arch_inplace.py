"""In-place operations that change what another part of the network still reads."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.arch_reading import defined
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

MATTERS = 1e-4  # relative difference of the outputs
NONE_THERE = "no module works in place"


@cause(
    "inplace_modifies_shared_tensor",
    group="arch",
    auto="R",
    explains=("loss_plateau", "slow_convergence", "underfitting", "missing_activation", "train_eval_mismatch"),
)
def inplace_modifies_shared_tensor(evidence: Evidence) -> Iterator[Finding]:
    """An in-place operation changes a tensor that another branch still uses.

    Finds: modules with inplace=True whose input is read again elsewhere (a skip connection, a second branch, the data):
    with inplace=False the same batch gives other outputs.
    Why it matters: the other branch no longer sees what it was meant to see; the network trains, with another function
    than the one written down.
    Decides by: a probe after the run: the last batch with and without inplace. Where nobody else reads the tensor both
    give the same to the last digits.
    Usual cures: inplace=False, or clone() the tensor before the in-place operation.
    """
    ran = evidence.probe("in_place")
    if ran is None:
        why = evidence.why_no_probe("in_place")
        if why != NONE_THERE:
            evidence.cannot("inplace_modifies_shared_tensor", why)
        return
    if (ran.get("difference") or 0.0) <= MATTERS:
        return
    layer = evidence.name(ran.get("layer_site")) or ran.get("layer")
    yield Finding(
        "inplace_modifies_shared_tensor",
        Severity.WARNING,
        f"{layer or 'a module'} works in place on a tensor that is read again elsewhere: "
        "without inplace=True the outputs are different",
        step=0,
        layer=layer,
        op=ran.get("layer_class"),
        source=defined(evidence, ran.get("layer_site")),
        evidence={
            "difference_of_outputs": float(ran["difference"]),
            "modules_in_place": int(ran.get("modules") or 0),
            "class": str(ran.get("layer_class") or "unknown"),
        },
        confidence=0.93,
        inference="Another branch reads the changed values instead of the original ones.",
    )
