"""Axes confused: what one sample gives depends on the others."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.arch_reading import defined
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity, SiteKind

BLIND = 1e-6  # change of a sample's own output: it does not depend on its own input at all
CLEARLY = 0.02  # change of the other samples' outputs, relative to the changed one's own
EVERYBODY = 0.5  # share of the others that change: one of N that an attention averages over moves each by 1/N or so
RECURRENT = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell")
ATTENDING = (
    "MultiheadAttention",
    "TransformerEncoderLayer",
    "TransformerEncoder",
    "TransformerDecoderLayer",
    "Transformer",
)
SOFTMAX = ("softmax", "_softmax", "log_softmax", "_log_softmax")


@cause(
    "wrong_tensor_layout",
    group="arch",
    auto="S",
    explains=("loss_plateau", "no_learning", "slow_convergence", "underfitting", "train_eval_mismatch"),
    excludes=("wrong_softmax_dim",),
)
def wrong_tensor_layout(evidence: Evidence) -> Iterator[Finding]:
    """Axes are confused: the output of one sample depends on the others.

    Finds: models whose output for a sample changes when another sample of the batch is changed, outside of batch
    normalisation: a recurrent or attention layer run over the batch axis (batch_first), a view or reshape where a
    permute was meant.
    Why it matters: samples are mixed with each other; the model learns from neighbours it will not have in use, and its
    results depend on how a batch is put together.
    Decides by: a probe after the run that replaces one sample of a recorded batch and compares the outputs of the
    others, in evaluation mode; the first layer at which they change is named. Nodes of a graph that are joined by a
    constant matrix or a list of edges are meant to depend on each other.
    Usual cures: batch_first=True, or x.transpose(0, 1) before the layer; permute instead of view.
    """
    ran = evidence.probe("cross_sample")
    if ran is None:
        evidence.cannot("wrong_tensor_layout", evidence.why_no_probe("cross_sample"))
        return
    shape = ran.get("out_shape") or []
    square = len(shape) == 2 and shape[0] == shape[1] == ran.get("samples")
    blind = ran.get("own") is not None and ran["own"] < BLIND
    sure = blind or ran.get("own_axis_hint") is not None
    site, kind = ran.get("layer_site"), str(ran.get("layer_class") or "")
    spreads = kind in (*RECURRENT, *ATTENDING) and (ran.get("leak_share") or 0) > EVERYBODY
    clearly = (ran.get("leak") or 0) >= CLEARLY or spreads
    if not ran.get("leaks") or not clearly or square or not sure:
        return
    if ran.get("given") or (ran.get("op") in SOFTMAX and not spreads):
        return  # the nodes of a graph; another cause's case
    layer = evidence.name(site) or ran.get("layer") or None
    what, how = _what(kind, str(ran.get("op") or ""))
    yield Finding(
        "wrong_tensor_layout",
        Severity.CRITICAL,
        f"the output of a sample depends on the other samples of its batch: {layer or 'the model'} {what}",
        step=0,
        layer=layer,
        op=ran.get("op"),
        source=_made(evidence, site, kind) or ran.get("source") or defined(evidence, site),
        evidence={
            "change_of_other_samples": float(ran["leak"]),
            "share_of_other_samples_changed": float(ran.get("leak_share") or 0.0),
            "samples": int(ran.get("samples") or 0),
            "operation": str(ran.get("op") or "unknown"),
            "layer_class": kind or "unknown",
        },
        confidence=0.9,
        inference=how,
    )


def _made(evidence: Evidence, site: int | None, kind: str) -> str | None:
    """The line where batch_first belongs: of a layer that torch made inside of another (and copied), the other's."""
    if site not in evidence.sites or kind not in (*RECURRENT, *ATTENDING):
        return None
    own = evidence.sites[site]
    above = [one for one in evidence.of_kind(SiteKind.MODULE) if one.model == own.model]
    around = [one for one in above if own.path == one.path or own.path.startswith(f"{one.path}.")]
    lines = (defined(evidence, one.id) for one in sorted(around, key=lambda one: -len(one.path)) if one.defined)
    return next(lines, None)


def _what(kind: str, op: str) -> tuple[str, str]:
    if kind in RECURRENT or op in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        return (
            "runs over the batch axis",
            "It takes the batch for time: batch_first=True is missing, or is one too many.",
        )
    if kind in ATTENDING or "attention" in op:
        return "attends over the batch axis", "It takes the batch for the sequence: batch_first=True is missing."
    if op in ("view", "_unsafe_view", "reshape", "expand"):
        return "rearranges values across samples", "A view keeps the order in memory; to swap axes, permute first."
    return "mixes them", "Values of several samples meet in one operation that should see each sample alone."
