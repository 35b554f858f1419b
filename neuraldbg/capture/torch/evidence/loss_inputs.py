"""What is put into the losses: by which operation it was made, in which range it lies, how it fits the target."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.budget import FIRST_IN_FULL
from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.core import ALONE_LOOKS
from neuraldbg.capture.torch.evidence.attention import Attention, attentions_of, of_seen, seen_keys
from neuraldbg.capture.torch.evidence.broadcasts import broadcast_of
from neuraldbg.capture.torch.evidence.graph_walk import Walk, shared_walk
from neuraldbg.capture.torch.evidence.host_copies import Array, HostCopies
from neuraldbg.capture.torch.evidence.leaks import ENOUGH_ROWS
from neuraldbg.capture.torch.evidence.loss_lines import Line, Watched, next_look
from neuraldbg.capture.torch.evidence.loss_structure import (
    alike,
    columns_for,
    inputs_of,
    recurrence_of,
    structure_of,
    token_ids,
)
from neuraldbg.capture.torch.evidence.loss_terms import (
    LossTerm,
    operands_of,
    passes_below,
    terms_of,
    time_slice,
)
from neuraldbg.capture.torch.evidence.loss_values import (
    CLASSIFYING,
    MOST_LABELS,
    ROWS_OF_SCORES,
    TARGETS,
    Values,
    class_rows,
    first_rows,
    is_input,
    label_counts,
    of_numbers,
    of_scores,
    of_target,
    outside,
    pairs_every_sample,
    sentinel_of,
)
from neuraldbg.capture.torch.evidence.penalties import penalties_of
from neuraldbg.capture.torch.evidence.pooling import padding_share, pools_of
from neuraldbg.capture.torch.evidence.sequences import as_rows, padded_targets, shift_of
from neuraldbg.capture.torch.nested import given_tensors, tensors
from neuraldbg.capture.torch.origin.lines import made_at
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.pieces import copy_of
from neuraldbg.capture.torch.stats import measurable
from neuraldbg.capture.torch.tree import Layer

LINES = 16  # lines of the script that call backward and are looked at
FIRST_LOOKS = 8  # on steps that are measured in full anyway: as many as are judged together
MOST_FIRST_LOOKS = 24  # where batches are so small that columns of inputs could not be judged by fewer
JUDGED_AFTER = (11, 24)  # looks: the first updates are over, which are looked at in so many other ways
SPACING = 1.3  # later looks: each so many times further into the run
NEAR, DEEP = 200, 6000  # operations read below a loss, and once in a while below it and into the model
LASTING = (
    "line",
    "recurrent",
    "models",
    "layer",
    "output_layer",
    "activation_site",
    "activation_inside",
    "fed_site",
    "maker_site",
    "softmax_site",
)  # modules
KEPT_OUTPUT = 65_536  # elements of a pass's output that are kept until its backward


class LossInputs:
    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self.passes = capture.passes
        self.copies = HostCopies()
        self._lines: dict[int, Line] = {}
        self._outputs: dict[int, Tensor] = {}  # pass id -> small copy of what it put out, until the update
        self._attentions: dict[tuple[Any, ...], Values] = {}
        self._recurrent: IdentityTable[str] = IdentityTable()
        self.core.take_part("layer_run", "modules of a loss", self._mark)
        for moment, notice in (
            ("pass_ended", self._pass_ended),
            ("backward_begun", self._begun),
            ("update_done", self._update_done),
            ("ending", self._ending),
        ):
            rarely = moment in ("pass_ended", "update_done")
            self.core.take_part(moment, "loss inputs", notice, rarely=rarely, early=not rarely)

    # -- on the way --------------------------------------------------------------------------------------------------

    def _mark(self, _: Any, layer: Layer, one: Pass, values: Any) -> None:
        """Where a module's inputs and outputs lie in the graph; the marks die with it."""
        if not one.grad:
            return
        args, kwargs, out = values
        made = (out,) if isinstance(out, Tensor) else tensors(out)
        for name, found in (("neuraldbg_in", given_tensors(args, kwargs)), ("neuraldbg_out", made)):
            for tensor in found:
                node: Any = tensor.grad_fn
                if node is not None:
                    node.metadata.setdefault(name, []).append(layer.site)

    def _pass_ended(self, one: Pass, _root: Any, _inputs: Any, outputs: Any) -> None:
        if not one.looked or not one.grad or len(self._outputs) >= 16:
            return
        first = next((t for t in tensors(outputs) if t.is_floating_point() and t.numel() <= KEPT_OUTPUT), None)
        if first is not None and measurable(first) and first.layout == torch.strided:
            with torch.no_grad():
                self._outputs[one.id] = copy_of(first)

    def _update_done(self, *_: Any) -> None:
        self._outputs.clear()
        self.copies.poll()

    def _ending(self) -> None:
        self.copies.finish_sync()
        for source, line in self._lines.items():
            for index, watched in line.terms.items():
                self._judge_columns(source, index, watched)
                if not watched.written:
                    self._write(source, index, watched)

    def _begun(self, loss: Tensor | None, source: int) -> None:
        core = self.core
        if loss is None or loss.grad_fn is None or core.budget.share == 0.0 or loss.is_complex():
            return
        line = self._lines.get(source)
        if line is None:
            if len(self._lines) >= LINES:
                return
            line = self._lines[source] = Line()
        if not (core.closely and line.looks < _wanted(line)) and core.backwards < line.next_look:
            self._wake()
            return
        if not core.closely and core.budget.starting and line.looks >= ALONE_LOOKS - 1:
            line.next_look = core.backwards + FIRST_IN_FULL  # steps are long, and all look together at one later
            self._wake()
            return
        if core.packed and not core.closely:
            self._wake()
            return  # only full steps know which part of the graph must not be read
        line.next_look = max(line.next_look, core.backwards * SPACING + 1)
        self._wake()
        deep = core.closely and (line.looks < 3 or line.looks % 8 == 0)
        line.looks += 1
        graph = shared_walk(core, loss, DEEP if deep else NEAR)
        records = {one.id: one for one in self.passes.current.copy() if one.record is not None}
        for index, term in enumerate(terms_of(graph)):
            self._look(source, index, term, graph, records)
        for number, penalty in enumerate(penalties_of(graph)):
            self._note(source, 100 + number, penalty)
        self._look_for_pairs(source, graph)
        if deep:
            self._look_inside(graph, records)

    def _wake(self) -> None:
        """All are told of the backward at which the next look is due."""
        lines = list(self._lines.values())  # other threads may add some
        self.core.look_at = math.inf if self.core.packed else next_look(lines, self.core.backwards)

    # -- one term ----------------------------------------------------------------------------------------------------

    def _look(self, source: int, index: int, term: LossTerm, graph: Walk, records: dict[int, Pass]) -> None:
        watched = self._lines[source].terms.setdefault(index, Watched())
        facts = structure_of(term, graph)
        facts["line"] = made_at(term.visit.node, self.core.recorder.frames)
        below = passes_below(term.fed, graph) or sorted(graph.passes)
        own = [records[one] for one in below if one in records]
        facts["models"] = sorted({one.model.site for one in own})
        scores, target = self._values(term, graph, below)
        facts["target_shape"] = None if target is None else list(target.shape)
        facts["target_dtype"] = None if target is None else str(target.dtype).removeprefix("torch.")
        sliced = time_slice(term, graph)
        facts["start"] = 0 if sliced is None else sliced[1]
        inputs = inputs_of(own)
        facts["recurrent"] = recurrence_of(own, self._recurrent)
        operands = operands_of(term, graph)
        pieces = {
            "scores": first_rows(scores, ROWS_OF_SCORES),
            "target": first_rows(target, TARGETS),
            "difference": _small(None if operands is None else operands.difference),
            "columns": None if watched.columns.full else columns_for(inputs, target, facts["kind"]),
            "given": alike(inputs, target) if facts["soft"] or facts["kind"] == "cross_entropy" else None,
            **{f"ids{number}": ids for number, ids in enumerate(token_ids(inputs))},
        }
        step = self.core.recorder.step

        def arrived(arrays: dict[str, Array]) -> None:
            self._arrived(source, index, {**facts, "at_step": step}, arrays)

        self.copies.take(pieces, arrived)

    def _look_for_pairs(self, source: int, graph: Walk) -> None:
        found = broadcast_of(graph)
        if found is None:
            return
        facts, numbers = found
        facts["line"] = made_at(facts.pop("node"), self.core.recorder.frames)

        def arrived(arrays: dict[str, Array]) -> None:
            if "numbers" in arrays:
                facts["all_pairs"] = pairs_every_sample(arrays["numbers"], tuple(facts["prediction_shape"][:2]))
            self._note(source, 200, facts)

        self.copies.take({"numbers": _small(numbers)}, arrived)

    def _values(self, term: LossTerm, graph: Walk, below: list[int]) -> tuple[Tensor | None, Tensor | None]:
        """Predictions and targets; of a difference written by hand, from the output of the pass that made them."""
        if term.inputs is not None or term.visit.name not in ("Pow", "Abs"):
            return term.inputs, term.target
        operands = operands_of(term, graph)
        minus = graph.past_shapes(graph.operand(term.visit))
        if operands is None or operands.difference is None or minus is None or minus.name != "Sub":
            return None, None
        for one in below:
            output = self._outputs.get(one)
            if output is not None and output.numel() == operands.difference.numel() == math.prod(operands.prediction):
                predicted = output.reshape(operands.difference.shape)
                first = minus.node.next_functions[0][0] is not None
                with torch.no_grad():
                    difference = operands.difference
                    return predicted, predicted - difference if first else predicted + difference
        return None, None

    def _arrived(self, source: int, index: int, facts: Values, arrays: dict[str, Array]) -> None:
        watched = self._lines[source].terms[index]
        scores, target = arrays.get("scores"), arrays.get("target")
        kind, ignore = facts["kind"], facts["ignore_index"]
        if target is not None:
            facts |= of_target(target if ignore is None else _without(target, ignore))
            if facts.get("range") is not None:
                facts["target_outside"] = outside(target, facts["range"])
            if kind not in CLASSIFYING:
                facts |= sentinel_of(target)
            _count(watched, target, ignore)
            if "given" in arrays and facts.get("target_binary"):
                facts["target_is_input"] = is_input(arrays["given"], target)
        if scores is not None and scores.ndim:
            hard = target if not facts["soft"] else None
            facts |= of_scores(scores, hard, ignore) if kind in CLASSIFYING else of_numbers(scores, target)
        if "difference" in arrays:
            facts["all_pairs"] = pairs_every_sample(arrays["difference"], tuple(facts["prediction_shape"] or ()))
        if target is not None and target.dtype.kind in "iu":
            facts |= _of_sequence(arrays, target, scores if kind in CLASSIFYING else None, facts)
        if "columns" in arrays and target is not None:
            watched.columns.add(arrays["columns"], target)
        self._keep(source, index, facts)

    def _note(self, source: int, index: int, facts: Values) -> None:
        self._lines[source].terms.setdefault(index, Watched())
        self._keep(source, index, {**facts, "at_step": self.core.recorder.step})

    def _keep(self, source: int, index: int, facts: Values) -> None:
        watched = self._lines[source].terms[index]
        watched.looks += 1
        lasting = {name: watched.last[name] for name in LASTING if watched.last.get(name) and not facts.get(name)}
        recent = watched.lately.add(facts)
        watched.last, watched.written = {**facts, **lasting, **recent}, False
        if watched.looks <= 3 or watched.looks & (watched.looks - 1) == 0:
            self._write(source, index, watched)
        if watched.looks in JUDGED_AFTER:
            self._judge_columns(source, index, watched)

    def _write(self, source: int, index: int, watched: Watched) -> None:
        watched.written = True
        counts = sorted((watched.labels or {}).items())
        fields = {key: value for key, value in watched.last.items() if value is not None}
        self.core.recorder.fact(
            "loss_input",
            source_id=source,
            term=index,
            look=watched.looks,
            labels=[list(one) for one in counts],
            **fields,
        )

    def _judge_columns(self, source: int, index: int, watched: Watched) -> None:
        found = watched.columns.judge()
        if found is not None:
            kind = watched.last.get("kind")
            recurrent = watched.last.get("recurrent")
            self.core.recorder.fact("leak", source_id=source, term=index, kind=kind, recurrent=recurrent, **found)

    # -- attention -----------------------------------------------------------------------------------------------------

    def _look_inside(self, graph: Walk, records: dict[int, Pass]) -> None:
        below = [records[one] for one in sorted(graph.passes) if one in records]
        inputs = inputs_of(below)
        batches = {tensor.shape[0] for tensor in inputs if tensor.dim()}
        self._pooling(graph, token_ids(inputs))
        for number, one in enumerate(attentions_of(graph)):
            ids = {f"ids{at}": tensor for at, tensor in enumerate(token_ids(inputs))}
            self._attention(number, one, ids, batches)

    def _pooling(self, graph: Walk, ids: list[Tensor]) -> None:
        by_length = {tensor.shape[1]: tensor for tensor in ids}
        for visit, length in pools_of(graph, set(by_length)):
            site, step = visit.layer, self.core.recorder.step
            if ("pooling", site) in self._attentions:
                continue

            def arrived(arrays: dict[str, Array], site: int | None = site, step: int = step) -> None:
                found = padding_share(arrays["ids"])
                if found is not None:
                    self._attentions["pooling", site] = found
                    self.core.recorder.fact("pooling", site=site, at_step=step, **found)

            self.copies.take({"ids": by_length[length]}, arrived)

    def _attention(self, number: int, one: Attention, ids: dict[str, Tensor], batches: set[int]) -> None:
        site = one.visit.layer
        inside = list(one.visit.inside)
        facts = {**one.facts, "site": site, "inside": inside, "batch": sorted(batches)[:4], "number": number}
        facts["token_inputs"] = len(ids)
        step = self.core.recorder.step
        keys = one.facts["shape"][one.facts["dim"]]
        tokens = next((tensor for tensor in ids.values() if tensor.shape[1] == keys), None)
        seen, samples, stride = seen_keys(one, 0 if tokens is None else len(tokens)) or (None, 0, 1)

        def arrived(arrays: dict[str, Array]) -> None:
            if "seen" in arrays:
                facts.update(of_seen(arrays["seen"], arrays.get("tokens")))
            known = self._attentions.get((number, site))
            if known is None or _changed(known, facts):
                self._attentions[number, site] = facts
                self.core.recorder.fact("attention", at_step=step, **facts)

        self.copies.take({"seen": seen, "tokens": None if tokens is None else tokens[:samples, ::stride]}, arrived)


# -- what one look gathers -----------------------------------------------------------------------------------------


def _small(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is not None and tensor.numel() <= TARGETS else None


def _without(target: Array, ignore: int) -> Array:
    return target[target != ignore] if target.dtype.kind in "iu" else target


def _count(watched: Watched, target: Array, ignore: int | None) -> None:
    numbers = target if ignore is None else _without(target, ignore)
    whole = watched.labels is not None and (numbers.dtype.kind in "iu" or bool((numbers == numbers.round()).all()))
    counts = label_counts(numbers) if whole else None
    if watched.labels is None or counts is None:
        watched.labels = None
        return
    for label, count in counts.items():
        watched.labels[label] = watched.labels.get(label, 0) + count
    if len(watched.labels) > MOST_LABELS:
        watched.labels = None


def _of_sequence(arrays: dict[str, Array], target: Array, scores: Array | None, facts: Values) -> Values:
    """Over all token inputs: the one the targets fit best."""
    found: Values = {}
    best = -1.0
    for name, ids in arrays.items():
        if not name.startswith("ids"):
            continue
        rows, turned = as_rows(target, len(ids)), as_rows(target, ids.shape[1], time_first=True)
        for one, other in ((ids, rows), (ids.T, turned)):
            shifted = None if other is None else shift_of(one, other, facts["start"], facts["ignore_index"])
            if shifted is None:
                continue
            ahead = 0.01 if shifted["shift"] == 1 else 0.0  # before an input that is the target itself
            if shifted["shift_match"] + ahead > best + 1e-9:
                best = shifted["shift_match"] + ahead
                found |= {key: value for key, value in shifted.items() if key != "shares"}
                found["shift_of_next"] = shifted["shares"].get(1)
        flat = class_rows(scores)[0] if scores is not None else None
        if rows is None:
            continue
        found |= padded_targets(ids, rows, flat, facts["ignore_index"]) or {}
    return found


def _changed(known: Values, facts: Values) -> bool:
    numbers = ("seen_share", "future_share", "real_seen", "pad_seen")
    return any(abs((known.get(name) or 0.0) - (facts.get(name) or 0.0)) > 0.25 for name in numbers)


def _wanted(line: Line) -> int:
    """Looks at first."""
    rows = [one.columns.rows for one in line.terms.values() if one.columns.rows]
    return MOST_FIRST_LOOKS if rows and min(rows) < ENOUGH_ROWS else FIRST_LOOKS
