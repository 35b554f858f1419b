"""A tensor of a step that was never stored: the step is made again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.errors import NotRecorded, UnknownName, UsageError
from neuraldbg.records import Site

if TYPE_CHECKING:
    from neuraldbg.capture.torch.recording.taking import Recording

FULL, AUTO = "full", "auto"
REMADE = ("output", "input", "gradient", "weight", "weight_gradient")


def check_record(record: bool | str) -> None:
    if record not in (True, False, FULL, AUTO, "off"):
        raise UsageError(f"record is 'auto' (True), 'full' or 'off' (False); got {record!r}")


def start_recording(capture: Any, record: bool | str, share: float) -> Recording | None:
    """Into memory. `share`: of the time, for one that leaves steps out."""
    from neuraldbg.capture.torch.recording.pacing import BY_ITSELF, Pace
    from neuraldbg.capture.torch.recording.taking import Recording
    from neuraldbg.capture.torch.recording.tape import Tape

    if record == FULL:
        return Recording(capture.core, capture.patches, Tape())
    if record in (False, "off") or share <= 0:
        return None
    tape = Tape(BY_ITSELF.host, windows=True, bounds=BY_ITSELF)
    pace = Pace(share, lambda: 0.0, lambda: capture.core.budget.trained_s)
    return Recording(capture.core, capture.patches, tape, pace)


def made_again(recording: Recording, capture: Any, site: Site, step: int, what: str) -> tuple[Any, str]:
    """The tensor, and the words that say whether it is proved to be the one of that step."""
    from neuraldbg.replay.answering import tensors_of
    from neuraldbg.replay.rebuild import Rebuilder

    layer = _module(capture, site)
    made = Rebuilder(recording).step(step, {site.path: layer})
    seen = made.seen[site.path]
    found = tensors_of(seen)[what]
    if found is None:
        raise NotRecorded(f"{site.path!r} has no {what.replace('_', ' ')} at step {step}")
    return found, made.proof_of(what)[0]


def _module(capture: Any, site: Site) -> Any:
    tree = capture.core.tree
    for model in tree.models.values():
        root = model.ref()
        if root is not None and model.site in (site.id, site.model):
            return root.get_submodule(site.path if site.id != model.site else "")
    raise NotRecorded(f"the model of {site.path!r} is gone")


def look_back(attachment: Any, step: int, kind: str, layer: str | None, part: str | None) -> dict[str, Any]:
    """A tensor of a step before, of a held run: the held thread makes the step again, and puts everything back."""
    from neuraldbg.capture.torch.shown import shown_tensor
    from neuraldbg.replay.recorded import bound_here

    if layer is None:
        raise UsageError("which layer? a step that is over has no layer of its own")
    if kind not in REMADE:
        raise UnknownName("tensor", kind, REMADE, listed_by=f"one of {', '.join(REMADE)}:")
    capture = attachment.capture
    site = capture.core.stops.meant.names().resolve(layer)
    recorded = bound_here(attachment.recording, Path(attachment.plan.run_dir), step)
    tensor, proof = made_again(recorded, capture, site, step, kind)
    told = {"step": step, "layer": layer, "kind": kind, "proof": proof, "source": "replayed"}
    return {**told, **shown_tensor(tensor, part)}
