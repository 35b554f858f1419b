"""The search itself, cheapest proof first: parameters, inputs, the passes run again, the graph that is still there."""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.guard import attempt, attempt_or_why
from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.hooks import PassWatch
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.origin.answer import Answer, from_chain, from_suspect
from neuraldbg.capture.torch.origin.graph import Path, bad_constants, bad_saved, judge, suspects
from neuraldbg.capture.torch.origin.lines import LossLines
from neuraldbg.capture.torch.origin.localiser import Localiser, TimeIsUp
from neuraldbg.capture.torch.origin.outside import maker
from neuraldbg.capture.torch.origin.rerun import Rerun
from neuraldbg.capture.torch.origin.values import bad_rows, describe, has_nan, not_finite, only_masks, readable
from neuraldbg.capture.torch.passes import Pass

LIMIT_S = 0.8
BATCHES = 4  # the last ones a loader gave, held weakly
Held = list[tuple[str, Path, dict[str, Any]]]  # operation, place in the graph, what its node keeps


class Search:
    def __init__(self, core: Core, passes: PassWatch, lines: LossLines) -> None:
        self.core = core
        self.passes = passes
        self.lines = lines
        self.batches: deque[list[weakref.ref[Tensor]]] = deque(maxlen=BATCHES)
        self.refused: str | None = None  # why the last attempt to run a pass again was not made
        self.step_s = 0.0  # a usual step: running it again may take as long as a few

    def batch_seen(self, batch: Any) -> None:
        self.batches.append([weakref.ref(tensor) for tensor in tensors(batch) if tensor.is_floating_point()])

    # -- a loss that is not finite ------------------------------------------------------------------------------------

    def behind_loss(self, loss: Tensor, source: int) -> Answer:
        return (
            self._parameters()
            or self._bad_batch()
            or self._passes(backward=False)
            or self._target(loss, source)
            or self._graph(loss, source)
            or self._outside(loss)
            or Answer("loss", "graph")
        )

    def _parameters(self) -> Answer | None:
        """Already bad before this step: an earlier update wrote it."""
        bad = [(site, p) for site, p in self.core.tree.trainable() if not_finite(p)]
        if not bad:
            return None
        site, first = bad[0]
        answer = Answer("parameter", "look", output=describe(first))
        name = self.core.recorder.sites[site].path
        answer.more = {"tensor": name, "parameter_site": site, "bad_parameters": len(bad)}
        return answer

    def _bad_batch(self) -> Answer | None:
        """What the loader handed out, before any operation of the model touched it."""
        for slot, ref in ((slot, ref) for batch in self.batches for slot, ref in enumerate(batch)):
            tensor = ref()
            if tensor is not None and readable(tensor) and not_finite(tensor) and not _mask(tensor):
                return _input(tensor, f"tensor {slot} of the batch")
        return None

    def _target(self, loss: Tensor, source: int) -> Answer | None:
        found = attempt(lambda: bad_saved(loss))
        if found is None:
            return None
        op, path, name, tensor = found
        made = self._computed(tensor)
        if made is not None:
            return made
        answer = _input(tensor, f"the {name} of {op}")
        answer.source = self.lines.of(source, path, op)
        return answer

    def _outside(self, loss: Tensor) -> Answer | None:
        """Something bad in the loss code that no graph made."""
        for tensor in bad_constants(loss):
            made = self._computed(tensor)
            if made is not None:
                return made
        return None

    def _computed(self, tensor: Tensor) -> Answer | None:
        """A tensor that the loop itself computes, step by step: from the source of the variable that holds it."""
        made = maker(self.core.recorder.frames, tensor)
        if made is None or not made.in_loop:
            return None
        about = describe(tensor)
        more = {"tensor": f"the variable {made.name}", "read_from_source": True}
        return Answer("loss", "graph", made.op, source=made.line, output=about, more=more)

    def _graph(self, loss: Tensor, source: int) -> Answer | None:
        found = suspects(loss)
        if not found:
            return None
        first = found[0]
        line = self.lines.of(source, first.path, first.op)
        answer = from_suspect(first, line)
        if first.in_model and self.refused:
            answer.more["not_replayed"] = self.refused
        return answer

    # -- gradients that are not finite --------------------------------------------------------------------------------

    def behind_gradients(self, held: Held, source: int) -> Answer:
        """The loss was finite. First the loss code: what came out of it into the passes."""
        from_loss = self._steep(held, source)
        if from_loss is not None and not self._arrived_finite():
            return from_loss
        return self._parameters() or self._came_bad() or self._passes(backward=True) or from_loss or _unknown()

    def _came_bad(self) -> Answer | None:
        """The gradient of a pass's output was bad when it came: the loss code made it so, which is gone by now."""
        for one in self._kept():
            for gradient in (one.arrived or {}).values():
                if not_finite(gradient):
                    answer = _unknown()
                    answer.more = {"tensor": f"the gradient of the output of {one.model.name}"}
                    answer.output = describe(gradient)
                    return answer
        return None

    def _arrived_finite(self) -> bool:
        kept = [one.arrived for one in self._kept()]
        known = [gradient for arrived in kept if arrived for gradient in arrived.values()]
        return bool(known) and None not in kept and not any(not_finite(gradient) for gradient in known)

    def _steep(self, held: Held, source: int) -> Answer | None:
        for op, path, kept in reversed(held):
            suspect = attempt(lambda op=op, kept=kept: judge(op, kept))  # type: ignore[misc]
            if suspect is not None and (suspect.backward or suspect.forward):
                suspect.path, suspect.forward, suspect.backward = path, False, True
                answer = from_suspect(suspect, self.lines.of(source, path, op))
                answer.node = f"backward of {op}"
                return answer
        return None

    # -- passes, run again --------------------------------------------------------------------------------------------

    def _kept(self) -> list[Pass]:
        kept = {one.id: one for one in self.passes.kept()}
        return [kept[number] for number in sorted(kept)]

    def _passes(self, *, backward: bool) -> Answer | None:
        """In order: the first pass that was given something bad, or that makes it."""
        limit = max(LIMIT_S, 3 * self.step_s)
        mode = Localiser(self.core.recorder.frames, lambda: None, limit_s=limit)
        began = time.monotonic()
        kept = self._kept()
        self.refused = None if kept else "no pass of this step was recorded"
        for one in kept:
            if time.monotonic() - began > limit:
                self.refused = "running the passes again took too long"
                return None
            again = Rerun(self.core, one)
            if again.refused:
                self.refused = again.refused
                continue
            answer = self._one_pass(again, mode, backward)
            if answer is not None:
                return answer
        return None

    def _one_pass(self, again: Rerun, mode: Localiser, backward: bool) -> Answer | None:
        for position, tensor in enumerate(again.inputs()):
            if readable(tensor) and not_finite(tensor) and not _mask(tensor):
                made = self._computed(tensor)
                if made is not None:
                    return made
                answer = _input(tensor, f"input {position} of {again.one.model.name}")
                answer.source = self._called_at(again.one)
                answer.more["pass_input"] = position
                return answer
        mode.forget()
        mode.fallback = self._called_at(again.one)
        found = _run(again, mode, backward)
        if isinstance(found, str):
            self.refused = found
            return None
        if not found.bad:
            return None
        first = min(found.bad, key=lambda event: event.index)
        answer = from_chain(mode.chain_to(first), "replay", self.core.recorder)
        answer.source = answer.source or mode.fallback
        answer.more["pass_id"] = again.one.id
        return answer

    def _called_at(self, one: Pass) -> str | None:
        return self.core.recorder.line_of_source(one.source)


def _run(again: Rerun, mode: Localiser, backward: bool) -> Any:
    """What running the pass again showed, or why it could not be."""

    def run() -> Any:
        try:
            with torch.enable_grad():
                return again.run(mode, backward=backward)
        except TimeIsUp:
            return "running the pass again took too long"

    shown, why = attempt_or_why(run)
    return shown if why is None else f"the pass cannot be run again: {why}"[:300]


def _unknown() -> Answer:
    return Answer("backward", "graph")


def _input(tensor: Tensor, name: str) -> Answer:
    about = describe(tensor)
    more = {"tensor": name, "bad_rows": bad_rows(tensor), "rows": int(tensor.shape[0]) if tensor.dim() else 1}
    return Answer("input", "look", inputs=[about], output=about, more=more)


def _mask(tensor: Tensor) -> bool:
    """-inf and zeros only: an additive mask, meant to be so."""
    return only_masks(tensor) and not has_nan(tensor) and bool(((tensor == 0) | torch.isinf(tensor)).all())
