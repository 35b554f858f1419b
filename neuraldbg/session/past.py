"""A tensor of a step that was never stored: the step is made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuraldbg.errors import NotRecorded, UsageError
from neuraldbg.records import Site

if TYPE_CHECKING:
    from neuraldbg.capture.torch.recording.taking import Recording

FULL = "full"


def check_record(record: bool | str) -> None:
    if record not in (True, False, FULL, "off"):
        raise UsageError(f"record is True, False or 'full'; got {record!r}")


def start_recording(capture: Any) -> Recording:
    from neuraldbg.capture.torch.recording.taking import Recording
    from neuraldbg.capture.torch.recording.tape import Tape

    return Recording(capture.core, capture.patches, Tape())


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
    return found, made.proof


def _module(capture: Any, site: Site) -> Any:
    tree = capture.core.tree
    for model in tree.models.values():
        root = model.ref()
        if root is not None and model.site in (site.id, site.model):
            return root.get_submodule(site.path if site.id != model.site else "")
    raise NotRecorded(f"the model of {site.path!r} is gone")
