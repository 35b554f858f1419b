"""What a debugging hook is made of: when it acts, on which condition, what it does, what came of it.

`HookTrigger.EveryForward`, `HookTrigger.EveryNSteps(10)`, `HookCondition.LossThreshold(5.0, Comparison.Greater)`,
`HookAction.Alert("...", AlertSeverity.Warning)`, ... are values that compare equal when they say the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar

from neuraldbg.debug.alerts import AlertSeverity
from neuraldbg.debug.settings import from_on
from neuraldbg.errors import ConfigError


class Comparison(Enum):
    """How a value is held against a threshold."""

    Greater = ">"
    Less = "<"
    Equal = "=="
    GreaterEqual = ">="
    LessEqual = "<="

    def holds(self, value: float, threshold: float) -> bool:
        """Of NaN nothing holds."""
        if self is Comparison.Greater:
            return value > threshold
        if self is Comparison.Less:
            return value < threshold
        if self is Comparison.Equal:
            return value == threshold
        return value >= threshold if self is Comparison.GreaterEqual else value <= threshold


class HookContext:
    """What a hook sees: the layer that just ran, or got its gradient. `loss`, `gradient_norm` and `memory_mb` are
    looked up when first asked for; None where nobody knows."""

    def __init__(self, layer: str, data: Any, *, shape: Sequence[int] | None, is_forward: bool, step: int) -> None:
        self.layer, self.data, self.is_forward, self.step = layer, data, is_forward, step
        self.shape = None if shape is None else tuple(int(each) for each in shape)
        self.metadata: Mapping[str, Any] = {}
        self.ask: Callable[[str, HookContext], Any] = lambda _, __: None

    @property
    def operation(self) -> str:
        """`forward` or `gradient`."""
        return "forward" if self.is_forward else "gradient"

    def _known(self, name: str) -> float | None:
        given = self.metadata.get(name)
        found = self.ask(name, self) if given is None else given
        return None if found is None else float(found.detach() if hasattr(found, "detach") else found)

    @cached_property
    def loss(self) -> float | None:
        return self._known("loss")

    @cached_property
    def gradient_norm(self) -> float | None:
        return self._known("gradient_norm")

    @cached_property
    def memory_mb(self) -> float | None:
        return self._known("memory_mb")


# -- when --------------------------------------------------------------------------------------------------------------


class HookCondition:
    """`holds(context)`: True, False, or None where what it asks for is not known."""

    LossThreshold: ClassVar[type[LossThreshold]]
    GradientNormThreshold: ClassVar[type[GradientNormThreshold]]
    MemoryThreshold: ClassVar[type[MemoryThreshold]]
    StepRange: ClassVar[type[StepRange]]
    Custom: ClassVar[type[Custom]]
    about: ClassVar[str] = "what it asks for"

    def holds(self, context: HookContext) -> bool | None:
        """None: not known."""
        raise NotImplementedError


def _against(value: float | None, comparison: Comparison, threshold: float) -> bool | None:
    return None if value is None else comparison.holds(value, threshold)


@dataclass(frozen=True)
class LossThreshold(HookCondition):
    threshold: float
    comparison: Comparison = Comparison.Greater
    about = "the loss"

    def holds(self, context: HookContext) -> bool | None:
        return _against(context.loss, self.comparison, self.threshold)


@dataclass(frozen=True)
class GradientNormThreshold(HookCondition):
    """Of the gradient at hand in a backward, else of what `metadata` says."""

    threshold: float
    comparison: Comparison = Comparison.Greater
    about = "the gradient's norm"

    def holds(self, context: HookContext) -> bool | None:
        return _against(context.gradient_norm, self.comparison, self.threshold)


@dataclass(frozen=True)
class MemoryThreshold(HookCondition):
    """MB of the process, or of the CUDA devices where they are in use."""

    threshold: float
    comparison: Comparison = Comparison.Greater
    about = "the memory in use"

    def holds(self, context: HookContext) -> bool | None:
        return _against(context.memory_mb, self.comparison, self.threshold)


@dataclass(frozen=True)
class StepRange(HookCondition):
    """Both ends belong to it."""

    start: int
    end: int

    def holds(self, context: HookContext) -> bool | None:
        return self.start <= context.step <= self.end


@dataclass(frozen=True)
class Custom(HookCondition):
    """A function of the context, or the name of one given to `register_condition`."""

    test: Callable[[HookContext], Any] | str

    def holds(self, context: HookContext) -> bool | None:
        test = context.ask("condition " + self.test, context) if isinstance(self.test, str) else self.test
        if test is None:
            raise ConfigError(f"no condition {self.test!r}: hooks.register_condition({self.test!r}, function) first")
        return bool(test(context))


class HookTrigger:
    """The moments a hook may act at. `holds` is asked with how often it has acted."""

    EveryForward: ClassVar[_EveryForward]
    EveryBackward: ClassVar[_EveryBackward]
    Once: ClassVar[_Once]
    EveryNSteps: ClassVar[type[EveryNSteps]]
    Conditional: ClassVar[type[Conditional]]
    LayerSpecific: ClassVar[type[LayerSpecific]]
    forward: ClassVar[bool] = True  # whether a forward, or a backward, can be such a moment
    backward: ClassVar[bool] = True

    def holds(self, context: HookContext, acted: int) -> bool | None:
        """None: what it asks for is not known."""
        raise NotImplementedError

    def wants_layer(self, _: str) -> bool:
        """Whether this layer can ever be its moment."""
        return True


class Always(HookTrigger):
    """A trigger that says all by which layers and which of forward and backward it is for."""


@dataclass(frozen=True)
class _EveryForward(Always):
    backward = False

    def holds(self, context: HookContext, _: int) -> bool | None:
        return context.is_forward


@dataclass(frozen=True)
class _EveryBackward(Always):
    forward = False

    def holds(self, context: HookContext, _: int) -> bool | None:
        return not context.is_forward


@dataclass(frozen=True)
class _Once(HookTrigger):
    def holds(self, _: HookContext, acted: int) -> bool | None:
        return acted == 0


@dataclass(frozen=True)
class EveryNSteps(HookTrigger):
    n: int

    def __post_init__(self) -> None:
        from_on("the n of EveryNSteps", self.n)

    def holds(self, context: HookContext, _: int) -> bool | None:
        return context.step % self.n == 0


@dataclass(frozen=True)
class Conditional(HookTrigger):
    condition: HookCondition

    def holds(self, context: HookContext, _: int) -> bool | None:
        return self.condition.holds(context)


@dataclass(frozen=True)
class LayerSpecific(Always):
    """The layers of these very names."""

    layers: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", (self.layers,) if isinstance(self.layers, str) else tuple(self.layers))

    def holds(self, _: HookContext, __: int) -> bool | None:
        return True

    def wants_layer(self, layer: str) -> bool:
        return layer in self.layers


# -- what --------------------------------------------------------------------------------------------------------------


class HookAction:
    """What a hook does. Those without a setting are values, the others are made: `HookAction.Alert("...")`."""

    InspectTensor: ClassVar[InspectTensor]
    TrackGradients: ClassVar[_TrackGradients]
    RecordActivations: ClassVar[_RecordActivations]
    PauseTraining: ClassVar[_PauseTraining]
    SaveSnapshot: ClassVar[type[SaveSnapshot]]
    Alert: ClassVar[type[Alert]]
    CustomCallback: ClassVar[type[CustomCallback]]


@dataclass(frozen=True)
class InspectTensor(HookAction):
    """Statistics and histogram; with `distribution` also what the values must be put in order for."""

    distribution: bool = False

    def __call__(self, *, distribution: bool = False) -> InspectTensor:
        return InspectTensor(distribution)


@dataclass(frozen=True)
class _TrackGradients(HookAction):
    pass


@dataclass(frozen=True)
class _RecordActivations(HookAction):
    pass


@dataclass(frozen=True)
class _PauseTraining(HookAction):
    pass


@dataclass(frozen=True)
class SaveSnapshot(HookAction):
    """The tensor as safetensors: into a folder, or a file named with `{layer}`, `{step}` and `{operation}`."""

    path: str | os.PathLike[str]


@dataclass(frozen=True)
class Alert(HookAction):
    message: str
    severity: AlertSeverity = AlertSeverity.Warning


@dataclass(frozen=True)
class CustomCallback(HookAction):
    """A function of the context, or the name of one given to `register_callback`."""

    callback: Callable[[HookContext], Any] | str


# -- outcome -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HookResult:
    """`is_success`, `is_error` with `.message`, `is_skipped` with `.reason`."""

    kind: str
    text: str = ""
    Success: ClassVar[HookResult]

    @staticmethod
    def Error(message: str) -> HookResult:
        """It failed, and why."""
        return HookResult("error", message)

    @staticmethod
    def Skipped(reason: str) -> HookResult:
        """It was its moment, and nothing was done, and why."""
        return HookResult("skipped", reason)

    @property
    def is_success(self) -> bool:
        """Whether it did what it is for."""
        return self.kind == "success"

    @property
    def is_error(self) -> bool:
        """Whether it failed: then it acts no more."""
        return self.kind == "error"

    @property
    def is_skipped(self) -> bool:
        """Whether it had a reason to do nothing."""
        return self.kind == "skipped"

    @property
    def message(self) -> str:
        """Of an error."""
        return self.text

    @property
    def reason(self) -> str:
        """Of a hook that was skipped."""
        return self.text

    def __repr__(self) -> str:
        return self.kind.capitalize() + (f"({self.text!r})" if self.text else "")


HookCondition.LossThreshold = LossThreshold
HookCondition.GradientNormThreshold = GradientNormThreshold
HookCondition.MemoryThreshold = MemoryThreshold
HookCondition.StepRange = StepRange
HookCondition.Custom = Custom
HookTrigger.EveryForward = _EveryForward()
HookTrigger.EveryBackward = _EveryBackward()
HookTrigger.Once = _Once()
HookTrigger.EveryNSteps = EveryNSteps
HookTrigger.Conditional = Conditional
HookTrigger.LayerSpecific = LayerSpecific
HookAction.InspectTensor = InspectTensor()
HookAction.TrackGradients = _TrackGradients()
HookAction.RecordActivations = _RecordActivations()
HookAction.PauseTraining = _PauseTraining()
HookAction.SaveSnapshot = SaveSnapshot
HookAction.Alert = Alert
HookAction.CustomCallback = CustomCallback
HookResult.Success = HookResult("success")
