"""The nouns of a debugged run: small, frozen, without behaviour. Units and costs stand in the names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


class _Noun(Enum):
    """Found in tables at every step: `Enum` has its names hashed, by Python, where it is enough that they differ."""

    __hash__ = object.__hash__


class Kind(_Noun):
    """What a recorded row measures."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"  # of an activation (module site) or of a parameter (parameter site)
    PARAMETER = "parameter"
    UPDATE = "update"  # parameter after the step minus parameter before it
    INPUT = "input"
    TARGET = "target"
    SPAN = "span"
    SCALAR = "scalar"
    MARK = "mark"


class Phase(_Noun):
    """Which part of a training step a row belongs to."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    EVAL = "eval"


class SiteKind(_Noun):
    """What sort of thing a site is."""

    MODEL = "model"
    MODULE = "module"
    PARAMETER = "parameter"
    OPTIMIZER = "optimizer"
    LOADER = "loader"
    LOSS = "loss"
    SERIES = "series"  # a named scalar: loss, lr, grad_norm, ...
    COLLECTIVE = "collective"  # all_reduce, broadcast, ...; its op is the process group


class Call(_Noun):
    """An entry of the ledger: who called what, in which order."""

    PASS = "pass"  # a root forward began; value = 1 when grad mode was on, aux = 1 when model.training
    PASS_TRAIN = "pass_train"  # a gradient came back to this pass
    PASS_EVAL = "pass_eval"  # grad mode was off
    PASS_ORPHAN = "pass_orphan"  # grad mode was on and no backward ever came
    BACKWARD = "backward"  # value = loss where it is already known
    ZERO_GRAD = "zero_grad"
    CLIP = "clip"  # value = norm before, aux = threshold
    UNSCALE = "unscale"
    STEP = "step"  # an update that ran; value = lr of the first group
    STEP_SKIPPED = "step_skipped"  # GradScaler found inf and did not step; value = scale
    STEP_MANUAL = "step_manual"  # parameters moved without an optimizer
    SCHEDULER = "scheduler"  # value = lr afterwards
    BATCH = "batch"  # a loader handed out a batch; digest = its hash, value = seconds waited
    LOAD_STATE = "load_state"  # load_state_dict on a module or optimizer
    GRAD_STALE = "grad_stale"  # at backward entry after an update: value = share of old gradients that are not zero
    AUTOGRAD_GRAD = "autograd_grad"  # torch.autograd.grad: a backward that is no micro-step
    PASS_RECOMPUTED = "pass_recomputed"  # activation checkpointing ran a forward again inside backward
    COLLECTIVE = "collective"  # those of one kind since the last update: value = bytes, aux = calls
    DIGEST_WEIGHT = "digest_weight"  # digest = hash of a parameter as an update found it
    DIGEST_GRADIENT = "digest_gradient"  # and of the gradient that the update was given


class Severity(Enum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Site:
    """Where in the run a value was seen. Interned once per run; rows carry only its id."""

    id: int
    path: str  # "encoder.0.attention.query"; "" is the root of its model
    kind: SiteKind
    op: str | None = None  # class name of the module, optimizer or loader
    model: int | None = None  # site id of the model it belongs to
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    device: str | None = None
    source: str | None = None  # "train.py:42", where the user's code calls it
    defined: str | None = None  # "model.py:17", where the user's code creates it
    parameters: int | None = None  # elements owned directly (module), all (model), own (parameter)
    flops: int | None = None  # of one forward call at the first shape seen
    rank: int = 0
    input_shape: tuple[int, ...] | None = None  # of the first tensor that went into a module, the first time


@dataclass(frozen=True, slots=True)
class Moment:
    """When a value was seen."""

    step: int
    seq: int
    rank: int
    phase: Phase
    wall_ns: int


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Statistics of one tensor over its finite values. None where the tensor has none."""

    count: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    l2: float | None
    zero_count: int
    nan_count: int
    inf_count: int
    digest: int | None = None

    @property
    def zero_ratio(self) -> float | None:
        return self.zero_count / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class Cost:
    duration_ns: int | None
    host_bytes: int | None
    device_bytes: int | None
    flops: int | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A symptom or a cause, with the numbers that convinced whoever found it and, apart from them, what is inferred."""

    kind: str  # an id of the taxonomy
    severity: Severity
    summary: str  # one sentence
    step: int | None = None
    last_step: int | None = None
    layer: str | None = None
    op: str | None = None
    source: str | None = None
    evidence: Mapping[str, float | str] = field(default_factory=dict)
    rank: int = 0
    confidence: float | None = None  # 0 to 1
    inference: str = ""  # what follows from the evidence, and why it matters


@dataclass(frozen=True, slots=True)
class Fix:
    title: str
    patch: str | None = None  # unified diff against the user's file
    auto: str = "D"  # R = can be tried at run time, S = needs a source edit, D = the user decides, N = not repairable
    verified: bool | None = None
    effect: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A finding in its place: what it led to, earliest first, and what cures it."""

    finding: Finding
    chain: tuple[Finding, ...] = ()
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True, slots=True)
class Breakpoint:
    layer: str
    condition: str | None = None
    phase: Phase = Phase.FORWARD
    enabled: bool = True
    group: str | None = None
    once: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Stop:
    """A place where a run can be held: a layer that has just run, forward or backward, or an update that was made."""

    step: int
    phase: Phase
    layer: str | None
    site: int
    values: dict[str, Any]  # what conditions see; None: not known yet
    tensors: Callable[[], Mapping[str, Any]] = dict  # input, output, gradient, weight: while the run is held
    describe: Callable[[Stop, str, str | None, str | None], dict[str, Any]] | None = None  # (.., kind, layer, slice)
    fill: Callable[[], None] | None = None  # measures what nobody has asked for yet
    frame: Any = None  # the user's innermost frame
    source: str | None = None
    moment: str = "after the update"  # where no layer is at hand

    def place(self) -> dict[str, Any]:
        phase = "step" if self.phase is Phase.UPDATE else self.phase.value
        return {"step": self.step, "phase": phase, "layer": self.layer, "source": self.source}

    def title(self) -> str:
        where = self.moment if self.phase is Phase.UPDATE else f"at {self.layer} {self.phase.value}"
        return f"{where}, step {self.step}" + (f", {self.source}" if self.source else "")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What `run.json` says of a run, and what its end added."""

    id: str
    command: tuple[str, ...]
    backend: str | None
    versions: Mapping[str, str]
    started: str  # ISO 8601, UTC
    script: str | None = None
    cwd: str | None = None
    pid: int | None = None
    world_size: int = 1
    budget: str = "1%"
    duration_s: float | None = None
    exit_code: int | None = None
    ended: bool = False
    error: str | None = None  # last line of the exception that ended the script
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the analysis, where the user gave some
    deterministic: bool = False  # repeatable kernels were asked for

    @property
    def interrupted(self) -> bool:
        """Somebody pressed Ctrl-C, or left it from a breakpoint."""
        return bool(self.error and self.error.startswith("KeyboardInterrupt"))


class Gate(Protocol):
    """What capture needs of control: a place where a run may be stopped."""

    def reached(self, moment: Moment, site: Site, data: Mapping[str, Any]) -> None: ...
