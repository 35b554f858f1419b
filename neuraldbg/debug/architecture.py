"""What a model is made of: told by hand, or read off a torch or Keras model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from neuraldbg.analysis.results import Result
from neuraldbg.errors import UsageError

MB: Final = 2**20
ACTIVATIONS: Final = frozenset(
    "ReLU ReLU6 LeakyReLU PReLU RReLU ELU SELU CELU GELU SiLU Mish Hardswish Hardsigmoid Hardtanh Sigmoid LogSigmoid "
    "Tanh Softmax LogSoftmax Softplus Softsign Softmin Tanhshrink Threshold GLU Activation".split()
)


@dataclass(frozen=True, eq=False)
class ModelArchitectureInfo(Result):
    """`depth`: layers that have parameters; `width`: the most units of one of them. None: not told."""

    total_parameters: int
    trainable_parameters: int
    model_size_mb: float
    layer_count: int
    layer_types: dict[str, int] = field(default_factory=dict)
    depth: int | None = None
    width: int | None = None
    activation_functions: dict[str, int] = field(default_factory=dict)

    @property
    def frozen_parameters(self) -> int:
        """Those that are not trained."""
        return self.total_parameters - self.trainable_parameters


def architecture_of(model: Any) -> ModelArchitectureInfo:
    if hasattr(model, "named_modules") and hasattr(model, "named_parameters"):
        return _of_torch(model)
    if hasattr(model, "layers") and hasattr(model, "count_params"):
        return _of_keras(model)
    raise UsageError(
        f"cannot read the architecture of a {type(model).__name__}; "
        "hand over a ModelArchitectureInfo, or a torch or Keras model"
    )


def is_whole(model: Any) -> bool:
    """Whether every layer of a torch model knows its size: lazy ones do after the first pass."""
    return not any(hasattr(each, "materialize") for each in (*model.parameters(), *model.buffers()))


def _of_torch(model: Any) -> ModelArchitectureInfo:
    """Of a parameter that several layers share, once."""
    if not is_whole(model):
        raise UsageError("the model has lazy layers that have no size yet: run it once, then record its architecture")
    parameters = list(model.parameters())
    kept = [*parameters, *model.buffers()]
    layers = [module for _, module in model.named_modules() if next(module.children(), None) is None]
    weighted = [one for one in layers if next(one.parameters(recurse=False), None) is not None]
    widths = [len(own) for one in weighted for own in one.parameters(recurse=False) if own.dim() > 1]
    return ModelArchitectureInfo(
        total_parameters=sum(one.numel() for one in parameters),
        trainable_parameters=sum(one.numel() for one in parameters if one.requires_grad),
        model_size_mb=sum(one.numel() * one.element_size() for one in kept) / MB,
        layer_count=len(layers),
        layer_types=_counted(layers),
        depth=len(weighted),
        width=max(widths, default=None),
        activation_functions={name: n for name, n in _counted(layers).items() if name in ACTIVATIONS},
    )


def _of_keras(model: Any) -> ModelArchitectureInfo:
    layers = list(model.layers)
    weights = {id(one): one for one in model.weights}.values()
    trainable = {id(one): one for one in model.trainable_weights}.values()
    named = [str(getattr(getattr(one, "activation", None), "__name__", "linear")) for one in layers]
    used = [name for name in named if name != "linear"]
    return ModelArchitectureInfo(
        total_parameters=int(model.count_params()),
        trainable_parameters=sum(_elements(one) for one in trainable),
        model_size_mb=sum(_elements(one) * _bytes(one) for one in weights) / MB,
        layer_count=len(layers),
        layer_types=_counted(layers),
        depth=sum(bool(one.weights) for one in layers),
        width=max((int(one.shape[-1]) for one in weights if len(one.shape) > 1), default=None),
        activation_functions={name: used.count(name) for name in dict.fromkeys(used)},
    )


def _counted(layers: list[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in layers:
        found[type(one).__name__] = found.get(type(one).__name__, 0) + 1
    return found


def _elements(weight: Any) -> int:
    size = 1
    for each in weight.shape:
        size *= int(each)
    return size


def _bytes(weight: Any) -> int:
    name = str(getattr(weight.dtype, "name", weight.dtype))
    return {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}.get(name, 4)
