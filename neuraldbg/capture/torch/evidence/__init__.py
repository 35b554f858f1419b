"""Exact evidence for diagnoses, beyond the ledger and the statistics: each watcher writes facts of its own."""

from __future__ import annotations

from typing import Any

# "module:Class", each made with the TorchCapture it takes part in
WATCHERS: tuple[str, ...] = (
    "origin:OriginWatch",
    "loss_scaling:LossScaling",
    "rounding:Rounding",
    "half_gradients:HalfGradients",
    "loss_inputs:LossInputs",
    "masked_labels:MaskedLabels",
    "score_terms:ScoreTerms",
    "positions:Positions",
    "identity_births:Births",
    "identity:Ownership",
    "graphs_flow:GradientFlow",
    "graphs_lost:LostGradients",
    "graphs_cut:GraphCuts",
    "graphs_reach:GraphReach",
    "graphs_kept:KeptGraphs",
    "modes:Modes",
    "checkpoints:Checkpoints",
    "tying:Tying",
    "norms:NormLayers",
    "copies:Copies",
    "frozen:FrozenChanges",
    "waiting:HostFetches",
    "network:Network",
    "starts:Starts",
    "accumulation:AccumulationWindows",
    "data:DataEvidence",
    "histograms:Histograms",
)
PROFILED: tuple[str, ...] = (
    "graphs_kept:KeptGraphs",
    "values_kept:KeptValues",
    "waiting:HostFetches",
)  # those a profile has a use for


def start_watchers(capture: Any, names: tuple[str, ...] = WATCHERS) -> list[Any]:
    """Imported one by one when a run is attached to: importing the package costs nothing. One that cannot start is
    reported and left out."""
    from importlib import import_module

    def start(name: str) -> Any:
        module, _, kind = name.partition(":")
        return getattr(import_module(f"{__name__}.{module}"), kind)(capture)

    shield = capture.core.guard.shield
    started = [shield(f"evidence of {name.partition(':')[0]}")(start)(name) for name in names]
    return [watcher for watcher in started if watcher is not None]
