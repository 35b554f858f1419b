"""What a session was told, drawn as one page beside its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from neuraldbg.debug.diagnostics import ModelPerformanceMetrics
from neuraldbg.debug.gradients import GradientFlow, LayerHealth
from neuraldbg.debug.visualizer import DebugVisualizer

PAGE: Final = "dashboard.html"
MOST_LAYERS: Final = 24  # that are drawn; of more, the least healthy
_BADNESS: Final = (LayerHealth.Critical, LayerHealth.Warning, LayerHealth.Unknown, LayerHealth.Healthy)


def draw(
    place: Path,
    history: Sequence[ModelPerformanceMetrics],
    flows: Mapping[str, Sequence[GradientFlow]],
    health: Mapping[str, LayerHealth],
) -> Path | None:
    """Losses and the gradient flow of the layers; None where neither was recorded."""
    plots = DebugVisualizer()
    for name, field in (("loss", "loss"), ("validation loss", "validation_loss")):
        known = [(one.training_step, one[field]) for one in history if one[field] is not None]
        if known:
            plots.plot_loss(*zip(*known, strict=True), name=name)
    for layer in _shown(flows, health):
        records = flows[layer]
        plots.plot_gradient_flow(layer, [one.step for one in records], [one.gradient_norm for one in records])
    return plots.create_dashboard(path=place).path if plots.get_plot_names() else None


def _shown(flows: Mapping[str, object], health: Mapping[str, LayerHealth]) -> list[str]:
    """In the order they came in."""
    worst = sorted(flows, key=lambda layer: _BADNESS.index(health.get(layer, LayerHealth.Unknown)))[:MOST_LAYERS]
    return [layer for layer in flows if layer in worst]
