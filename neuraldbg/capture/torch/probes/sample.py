"""What experiments need afterwards: a few batches with their losses, the model, its first weights, its optimizers."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.kernels.host import same_bits
from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.members import named_buffers_of, parameters_of
from neuraldbg.capture.torch.nested import leaves, map_leaves, map_tensors, tensors
from neuraldbg.capture.torch.passes import KeptTensor, Pass, PassRecord
from neuraldbg.capture.torch.pieces import copied, copy_of
from neuraldbg.capture.torch.probes.graph_nodes import Unknown
from neuraldbg.capture.torch.probes.loss_replay import Tape, TapedPass

MOST_SAMPLES = 8
EACH_UNTIL = 5  # backwards of which each is one
MOST_BYTES = 16 * 2**20  # of all samples
SAMPLE_BYTES = 4 * 2**20
MODEL_BYTES = 64 * 2**20  # a larger model is not held for experiments
OUTPUT_BYTES = 2 * 2**20  # on a device: of more the loss is not computed again, which takes several times as much
INITIAL_BYTES = 32 * 2**20
HELD_AFTER = 8  # updates; a model that was trained for fewer is not experimented with, and so not kept alive
MOST_CHANGES = 16  # of the trained model; a run that alternates more often is not followed
MOST_PASSES = 32  # of one loss
RATES = 512  # learning rates that are remembered, from the first update on


@dataclass(eq=False)
class Sample:
    """One backward: how its loss is computed from recorded inputs."""

    tape: Tape
    step: int
    source: int
    bytes: int

    def roots(self) -> list[nn.Module]:
        used = [self.tape.passes[number] for number in self.tape.used_passes]
        return list({id(one.root): one.root for one in used}.values())


@dataclass(eq=False)
class OptimizerTrace:
    """How an optimizer was made and which step sizes it used; the optimizer itself is not held."""

    kind: type[Optimizer]
    options: list[dict[str, Any]]  # of each group, without its parameters
    parameters: list[list[int]]  # ids, by group; the held model keeps them alive
    known: Any  # Known, which counts its updates
    before: int  # of them
    rates: list[tuple[float, ...]] = field(default_factory=list)
    clip: tuple[str, float] | None = None  # what bounded the gradients, and at which limit

    @property
    def updates(self) -> int:
        return int(self.known.updates) - self.before


@dataclass(eq=False)
class Specimen:
    """One trained model (or several that one loss trains together)."""

    refs: list[weakref.ref[nn.Module]]
    samples: list[Sample] = field(default_factory=list)
    initial: dict[int, Tensor] = field(default_factory=dict)  # id of a parameter -> its first value
    buffers: dict[int, Tensor] = field(default_factory=dict)
    optimizers: IdentityTable[OptimizerTrace] = field(default_factory=IdentityTable)
    traces: list[OptimizerTrace] = field(default_factory=list)
    stride: int = 1
    offered: int = 0
    from_start: bool = False
    first_update: int = -1
    updates: int = 0
    held: list[nn.Module] = field(default_factory=list)  # once there is enough to experiment with

    @property
    def roots(self) -> list[nn.Module]:
        """Those that still live."""
        return [root for ref in self.refs if (root := ref()) is not None]

    @property
    def whole(self) -> bool:
        return len(self.roots) == len(self.refs)

    def is_trained_by(self, optimizer: Optimizer) -> bool:
        mine = {id(parameter) for root in self.roots for parameter in parameters_of(root)}
        return any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"])

    def offer(self, sample: Sample) -> None:
        """Evenly spread over the run: when there is no room every second one goes. Once the first have shown which
        models train together, every second one is taken: of a run long enough for experiments no more would stay."""
        self.offered += 1
        if (self.offered - 1) % self.stride:
            return
        self.samples.append(sample)
        early = self.stride == 1 and self.offered == EACH_UNTIL
        while early or len(self.samples) > MOST_SAMPLES or sum([one.bytes for one in self.samples]) > MOST_BYTES:
            early = False
            self.samples = self.samples[::2]
            self.stride *= 2

    @property
    def wants(self) -> bool:
        return self.offered % self.stride == 0


NO_PASS = "no pass of a model was seen with its backward"
SEVERAL_THREADS = "several threads train"
TOO_LARGE = f"the model has more than {MODEL_BYTES >> 20} MB of parameters"


class Samples:
    """Watches a run for what experiments will need."""

    def __init__(self, core: Core, unscaled: IdentityTable[Tensor], ledger: Any) -> None:
        self.core = core
        self.unscaled = unscaled
        self.ledger = ledger
        self.specimen: Specimen | None = None
        self.why_not = NO_PASS
        self.loss_lines: Counter[int] = Counter()
        self.per_update: Counter[int] = Counter()  # backwards per update -> updates
        self._counted_in = -1  # the step whose backwards these are
        self._since_update = 0
        self._tape: Tape | None = None
        self._numbers: dict[int, int] = {}  # id of a pass -> its number on the tape
        self._done = False  # this step has its sample
        self._changes = 0
        self._bytes: IdentityTable[int] = IdentityTable()  # of the parameters of a model
        if core.budget.share == 0.0:
            return  # no pass is kept, and nothing is tried
        for moment, notice, early in (
            ("pass_begun", self._pass_begun, True),
            ("pass_ended", self._pass_ended, True),
            ("backward_begun", self._backward_begun, True),
            ("update_begun", self._update_begun, False),  # until it has seen enough
            ("update_done", self._update_done, True),
        ):
            core.take_part(moment, "samples for experiments", notice, early=early)

    # -- passes ----------------------------------------------------------------------------------------------------

    def _pass_begun(self, one: Pass, root: nn.Module | None, args: Any, kwargs: Any) -> None:
        if one.record is None or self._done or root is None or self._changes > MOST_CHANGES:
            return
        if self.core.trainers > 1:
            self._give_up(SEVERAL_THREADS)  # which pass belongs to which backward is not known
            return
        if self.specimen is not None and not self.specimen.wants and any(root is own for own in self.specimen.roots):
            self._skip()
            return
        entry = one.entry_module() if one.entry_module is not None else None
        if entry is None:
            return
        if self._bytes_of(root) > MODEL_BYTES:
            self._give_up(TOO_LARGE)  # before anything of the pass is kept
            return
        tape = self._tape = self._tape or Tape()  # held on to: a thread that joins in drops it
        if len(tape.passes) >= MOST_PASSES:
            self._give_up(f"more than {MOST_PASSES} passes before a backward")
            return
        try:
            inputs = _inputs_on(tape, args, kwargs)
        except Unknown as error:
            self._give_up(str(error))
            return
        record = _own(one.record, inputs)
        if record is None:
            self._give_up(f"batches of more than {SAMPLE_BYTES >> 20} MB are not kept")
            return
        self._numbers[one.id] = len(tape.passes)
        tape.passes.append(TapedPass(record, weakref.ref(root), weakref.ref(entry), inputs))

    def _pass_ended(self, one: Pass, _: Any, __: Any, outputs: Any) -> None:
        number, tape = self._numbers.get(one.id), self._tape
        if number is None or tape is None or self.core.trainers > 1:
            return
        found = list(tensors(outputs))
        if any(tensor.is_cuda and tensor.numel() * tensor.element_size() > OUTPUT_BYTES for tensor in found):
            self._give_up(f"outputs of more than {OUTPUT_BYTES >> 20} MB on a device are not kept")
            return
        tape.outputs_of(number, found)

    def _bytes_of(self, root: nn.Module) -> int:
        known = self._bytes.get(root)
        if known is None:
            known = self._bytes[root] = sum([p.numel() * p.element_size() for p in parameters_of(root)])
        return known

    def _skip(self) -> None:
        self._done = True
        if self.specimen is not None:
            self.specimen.offered += 1

    def _give_up(self, why: str) -> None:
        self.why_not = why
        self._done = True
        self._drop_tape()

    def _drop_tape(self) -> None:
        self._tape = None
        self._numbers.clear()

    # -- the loss --------------------------------------------------------------------------------------------------

    def _backward_begun(self, loss: Tensor | None, source: int) -> None:
        if self._counted_in != self.core.recorder.step:  # of the update before nobody may have told
            self._counted_in, self._since_update = self.core.recorder.step, 0
        self._since_update += 1
        self.ledger.clipped = None  # what was clipped before this backward bounded nothing of it
        if len(self.loss_lines) < 64 or source in self.loss_lines:
            self.loss_lines[source] += 1
        tape = self._tape
        if tape is None or self._done or loss is None or self.core.trainers > 1:
            return
        self._done = True
        try:
            tape.finish(loss, self.unscaled.get(loss))
            self._take(Sample(tape, self.core.recorder.step, source, 0))
        except Unknown as error:
            self.why_not = str(error)
        finally:
            self._drop_tape()

    def _take(self, sample: Sample) -> None:
        used = [sample.tape.passes[number] for number in sample.tape.used_passes]
        if not used:
            raise Unknown("the loss does not depend on a recorded pass")
        sample.bytes = sample.tape.constant_bytes + sum(_record_bytes(one.record) for one in used)
        if sample.bytes > SAMPLE_BYTES:
            raise Unknown(f"batches of more than {SAMPLE_BYTES >> 20} MB are not kept")
        roots = sample.roots()
        held = [id(entry.what()) for entry in sample.tape.entries if entry is not None and entry.kind == "parameter"]
        if held and not set(held) <= {id(parameter) for root in roots for parameter in parameters_of(root)}:
            raise Unknown("the loss depends on tensors outside the model")
        if sum(map(self._bytes_of, roots)) > MODEL_BYTES:
            raise Unknown(TOO_LARGE)
        needed = set(sample.tape.used_passes)
        kept: list[Any] = [one if number in needed else None for number, one in enumerate(sample.tape.passes)]
        sample.tape.passes = kept  # a pass that the loss did not need is let go
        self._specimen_of(roots).offer(sample)

    def _specimen_of(self, roots: list[nn.Module]) -> Specimen:
        """The one at hand while its models go on being trained; another model's training lets go of it."""
        own = self.specimen
        ids = {id(root) for root in roots}
        if own is not None and ids <= {id(root) for root in own.roots}:
            return own
        if own is not None and ids & {id(root) for root in own.roots} and not own.initial:
            own.refs += [weakref.ref(root) for root in roots if all(root is not each for each in own.roots)]
            return own
        self._changes += own is not None
        self.specimen = Specimen([weakref.ref(root) for root in roots])
        self.core.stop_telling("update_begun", self._update_begun)  # it may rest
        self.core.tell_again("update_begun", self._update_begun)
        return self.specimen

    # -- updates ---------------------------------------------------------------------------------------------------

    def _update_begun(self, optimizer: Optimizer, known: Any) -> None:
        own = self.specimen
        if own is None or not own.samples:
            return
        own.updates += 1
        if own.updates == HELD_AFTER:
            own.held = own.roots
        trace = own.optimizers.get(optimizer)
        if trace is None:
            if len(own.traces) >= 8 or (self.core.trainers > 1 and not own.is_trained_by(optimizer)):
                return  # of several threads it may be another's
            trace = own.optimizers[optimizer] = _trace_of(optimizer, known)
            own.traces.append(trace)
        if own.first_update < 0:
            own.first_update = self.core.recorder.step
            own.from_start = known.updates == 0
            self._keep_first_values(own)
        clipped = self.ledger.clipped
        if clipped is not None and clipped[0] == self.core.recorder.step:
            trace.clip = clipped[1:]
        if len(trace.rates) < RATES and len(trace.rates) == trace.updates:
            trace.rates.append(tuple(map(_rate, optimizer.param_groups)))
        elif all(len(each.rates) >= RATES for each in own.traces):
            self.core.rest("update_begun", self._update_begun)

    def _keep_first_values(self, own: Specimen) -> None:
        parameters = [p for root in own.roots for p in parameters_of(root)]
        size = sum([p.numel() * p.element_size() for p in parameters])
        if size > INITIAL_BYTES or {p.layout for p in parameters} - {torch.strided}:
            return
        own.initial = dict(zip(map(id, parameters), self._copies(parameters), strict=True))
        for number in own.samples[0].tape.used_passes:
            one = own.samples[0].tape.passes[number]
            own.buffers.update(
                {
                    id(b): one.record.buffers[name]
                    for name, b in named_buffers_of(one.root)
                    if name in one.record.buffers
                }
            )

    def _copies(self, parameters: list[Tensor]) -> Sequence[Tensor]:
        """Those of the recording, where they are the same bit for bit: a parameter may have been moved since. They lie
        in one piece with those of all other models, and it stays as long as one of them does."""
        recorded = self.core.recorded
        theirs = [recorded[id(p)] for p in parameters if id(p) in recorded]
        pieces = {each.data_ptr(): each.nbytes() for each in [one.untyped_storage() for one in theirs]}
        fits = sum(pieces.values()) <= 2 * sum([one.nbytes for one in theirs])
        shared = fits and (self._were_compared(parameters, theirs) or same_bits(parameters, theirs))
        return theirs if shared else copied([p.detach() for p in parameters])

    def _were_compared(self, parameters: list[Tensor], copies: list[Tensor]) -> bool:
        """Whether these copies have just been taken for the values before this update, having been compared."""
        taken = {id(parameter): id(before) for _, parameter, before in self.core.here.local.kept or ()}
        return bool(taken) and [taken.get(id(parameter)) for parameter in parameters] == list(map(id, copies))

    def _update_done(self, *_: Any) -> None:
        if self._since_update:
            self.per_update[self._since_update] += 1
        self._since_update = 0
        self._done = False
        self._drop_tape()

    def close(self) -> None:
        self.specimen = None
        self._drop_tape()


def _rate(group: dict[str, Any]) -> float:
    rate = group.get("lr", 0.0)
    return float(rate) if isinstance(rate, int | float) or (isinstance(rate, Tensor) and not rate.is_cuda) else 0.0


def _trace_of(optimizer: Optimizer, known: Any) -> OptimizerTrace:
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    parameters = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    return OptimizerTrace(type(optimizer), options, parameters, known, known.updates)


def _inputs_on(tape: Tape, args: Any, kwargs: Any) -> dict[int, int]:
    """Inputs that were computed from the outputs of earlier passes. Raises Unknown where one cannot be followed."""
    found: dict[int, int] = {}
    place = -1

    def look(tensor: Tensor) -> Tensor:
        nonlocal place
        place += 1
        if tensor.grad_fn is not None:
            found[place] = tape.expression(tensor)
        return tensor

    map_tensors((args, kwargs), look)
    if tape.free:
        raise Unknown("an input computed with a constant that the graph does not keep")
    return found


def _own(record: PassRecord, inputs: Iterable[int]) -> PassRecord | None:
    """The record with nothing of the user's in it: inputs that are computed are left out, others are copied."""
    if all(leaf.version is None for leaf in leaves((record.args, record.kwargs), KeptTensor)):
        return record
    place = -1
    too_large = False

    def keep(kept: KeptTensor) -> KeptTensor:
        nonlocal place, too_large
        place += 1
        if kept.version is None:
            return kept
        if place in inputs:
            return KeptTensor(torch.empty(0), None)
        if kept.tensor.layout != torch.strided or kept.tensor.numel() * kept.tensor.element_size() > SAMPLE_BYTES:
            too_large = True
            return kept
        return KeptTensor(copy_of(kept.tensor), None)

    mapped = attempt(lambda: map_leaves((record.args, record.kwargs), KeptTensor, keep))
    return None if too_large or mapped is None else replace(record, args=mapped[0], kwargs=mapped[1])


def _record_bytes(record: PassRecord) -> int:
    kept = [leaf.tensor for leaf in leaves((record.args, record.kwargs), KeptTensor)] + list(record.buffers.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)
