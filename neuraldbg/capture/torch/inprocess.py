"""What `NeuralDbg` asks of the capture in its own process, synchronously."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from neuraldbg.capture.torch.attach import TorchCapture
from neuraldbg.capture.torch.snapshots import Event, SnapshotRing
from neuraldbg.capture.torch.stats import Measured, measure
from neuraldbg.records import Kind, Phase, Site

__all__ = ["Event", "Gradient", "SnapshotRing", "describe", "gradients_now_sync", "settle_sync"]


@dataclass(frozen=True, slots=True)
class Gradient:
    """A parameter's gradient as it stands now."""

    site: Site
    measured: Measured
    is_weight: bool


def gradients_now_sync(capture: TorchCapture) -> list[Gradient]:
    """The gradients of the update just done: measured in full where they are still there (and written to the trace
    where the step was not sampled), else the norms that were taken before the step."""
    capture.core.budget.always_watch = capture.updates.sweep.keep_norms = True
    if capture.updates.cleared:
        return _norms_before_step(capture)
    recorder = capture.core.recorder
    step = max(recorder.step - 1, 0)
    found = []
    for site, parameter in capture.core.tree.trainable():
        if parameter.grad is None:
            continue
        measured = measure(parameter.grad.cpu() if parameter.grad.device.type != "cpu" else parameter.grad)
        if measured is not None:
            found.append(Gradient(recorder.sites[site], measured, parameter.dim() >= 2))
            if not capture.last_step_sampled:
                recorder.stats(site, (Kind.GRADIENT, Phase.UPDATE, 0, -1), measured, step=step)
    return found or _norms_before_step(capture)


def _norms_before_step(capture: TorchCapture) -> list[Gradient]:
    sites = capture.core.recorder.sites
    norms = capture.updates.sweep.norms
    unknown = float("nan")
    return [
        Gradient(sites[site], (count, unknown, unknown, unknown, unknown, float(norm), 0, 0, 0, 0), dimensions >= 2)
        for site, (norm, count, dimensions) in norms.items()
    ]


def settle_sync(capture: TorchCapture) -> None:
    """Make everything seen so far readable from the trace."""
    capture.core.device.finish_sync()
    writer = capture.core.recorder.writer
    if writer is not None:
        writer.flush()


def describe(tensor: Tensor) -> dict[str, object]:
    """Shape, type and statistics of a stored tensor."""
    measured = measure(tensor.cpu() if tensor.device.type != "cpu" else tensor)
    known: dict[str, object] = {"shape": tuple(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if measured is not None:
        names = ("count", "mean", "std", "min", "max", "l2", "zero_count", "nan_count", "inf_count")
        known.update(zip(names, measured[:-1], strict=True))
    return known
