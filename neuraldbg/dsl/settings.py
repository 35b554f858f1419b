"""How a network is trained: optimizer, schedule, epochs, batches, clipping, stopping; each value against its rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from neuraldbg.dsl.losses import LOSSES, known_loss, loss_names
from neuraldbg.dsl.model import Called, Network, Reference, Setting
from neuraldbg.dsl.problems import Problem, Severity
from neuraldbg.dsl.values import shown
from neuraldbg.errors import nearest

OPTIMIZERS: Final = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam")
SCHEDULES: Final = (
    "ExponentialDecay",
    "StepDecay",
    "CosineDecay",
    "PolynomialDecay",
    "InverseTimeDecay",
    "LinearDecay",
    "WarmupCosine",
)
DEVICES: Final = ("cpu", "gpu", "cuda", "tpu", "auto", "mps")
EPOCHS, BATCH, RATE = 10, 32, {"SGD": 0.01, "Adadelta": 1.0}
_ANY_OPTIMIZER: Final = "learning_rate lr clipnorm clipvalue clip_norm global_clipnorm weight_decay name".split()
_OPTIMIZER_OPTIONS: Final = {
    **dict.fromkeys(("Adam", "AdamW"), ("beta_1", "beta_2", "epsilon", "eps", "amsgrad")),
    **dict.fromkeys(("Adamax", "NAdam", "RAdam"), ("beta_1", "beta_2", "epsilon", "eps")),
    "SGD": ("momentum", "nesterov"),
    "RMSprop": ("rho", "momentum", "epsilon", "eps", "centered"),
    "Adagrad": ("epsilon", "eps"),
    "Adadelta": ("rho", "epsilon", "eps"),
}
_TRAIN: Final = (
    "epochs batch_size validation_split gradient_clip gradient_clipping clip_norm early_stopping shuffle search_method "
    "callbacks learning_rate trials n_trials device"
).split()
_METRICS: Final = {  # what a metric of a file is called where it is computed
    "acc": "accuracy",
    "accuracy": "accuracy",
    "binary_accuracy": "accuracy",
    "categorical_accuracy": "accuracy",
    "sparse_categorical_accuracy": "accuracy",
    **dict.fromkeys(
        (
            "top_k_accuracy",
            "top_5_accuracy",
            "top5_accuracy",
            "top_k_categorical_accuracy",
            "sparse_top_k_categorical_accuracy",
        ),
        "top_5_accuracy",
    ),
    "mae": "mae",
    "mean_absolute_error": "mae",
    "mse": "mse",
    "mean_squared_error": "mse",
    "precision": "precision",
    "recall": "recall",
}
_COMPUTED: Final = {  # by what a target is
    "values": ("mae", "mse"),
    "classes": ("accuracy", "top_5_accuracy"),
    "binary": ("accuracy", "precision", "recall"),
}


def metric_of(name: str, kind: str) -> str | None:
    """The metric that is computed for this one where targets are of a `kind`; None where none is."""
    found = _METRICS.get(name.lower())
    return found if found in _COMPUTED[kind] else None


@dataclass(frozen=True, slots=True)
class Schedule:
    name: str
    positional: tuple[Any, ...]
    named: dict[str, Any]
    line: int


@dataclass(slots=True)
class Plan:
    """Everything a training loop is told."""

    optimizer: str = "Adam"
    options: dict[str, Any] = field(default_factory=dict)  # of the optimizer, by Keras names
    learning_rate: float = 1e-3
    schedule: Schedule | None = None
    epochs: int = EPOCHS
    batch_size: int = BATCH
    validation_split: float = 0.0
    clip_norm: float | None = None
    clip_value: float | None = None
    patience: int | None = None
    shuffle: bool = True
    search_method: str = "bayesian"
    trials: int = 10
    lines: dict[str, int] = field(default_factory=dict)


def check_settings(network: Network, taken: str | None = None) -> list[Problem]:
    """`taken` is the loss that is taken where the network names none that is known."""
    return plan_of(network, taken)[1]


def plan_of(network: Network, taken: str | None = None) -> tuple[Plan, list[Problem]]:
    reader = _PlanReader(network, taken)
    reader.read()
    return reader.plan, reader.problems


def no_device(text: str) -> str | None:
    """What is wrong with the name of a device; None where it is one."""
    kind, colon, number = text.strip().lower().partition(":")
    if kind in DEVICES and (not colon or number.isdigit()):
        return None
    near = nearest(text, DEVICES, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(DEVICES)}, and cuda:0"
    return f"there is no device {text!r}; {hint}"


class _PlanReader:
    def __init__(self, network: Network, taken: str | None) -> None:
        self.network, self.taken = network, taken
        self.plan = Plan(lines=dict(network.lines))
        self.problems: list[Problem] = []

    def say(self, severity: Severity, line: int, message: str, column: int = 1) -> None:
        self.problems.append(Problem(severity, line, column, message, "value"))

    def say_at(self, severity: Severity, key: str, message: str) -> None:
        """At the place of a section or one of its entries."""
        network = self.network
        self.say(severity, network.lines.get(key, network.line), message, network.columns.get(key, 1))

    def read(self) -> None:
        self._loss()
        self._optimizer()
        self._training()
        self._unread()
        self._device()

    def _loss(self) -> None:
        loss, network = self.network.loss, self.network
        taken = f"{self.taken}, which suits its last layer, is taken" if self.taken else "one is taken"
        if loss is None:
            self.say(Severity.WARNING, network.line, f"network {network.name} names no loss; {taken}")
        elif known_loss(loss.name) is None:
            near = nearest(loss.name, loss_names(), 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            self.say(Severity.WARNING, loss.line, f"there is no loss {loss.name!r} here; {hint}{taken}", loss.column)

    # -- optimizer -------------------------------------------------------------------------------------------------

    def _optimizer(self) -> None:
        setting = self.network.optimizer
        if setting is None:
            self.say(
                Severity.WARNING, self.network.line, f"network {self.network.name} names no optimizer; Adam is taken"
            )
        else:
            known = {name.lower(): name for name in OPTIMIZERS}
            found = known.get(setting.name.lower().replace("_", ""))
            if found is None:
                near = nearest(setting.name, OPTIMIZERS, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(OPTIMIZERS)}"
                self.say(
                    Severity.ERROR, setting.line, f"there is no optimizer {setting.name!r}; {hint}", setting.column
                )
                return
            self.plan.optimizer = found
            self.plan.options = dict(setting.params)
        self.plan.learning_rate = RATE.get(self.plan.optimizer, 1e-3)
        self._rate(setting)
        self._section_schedule()
        for key in ("clipnorm", "global_clipnorm", "clip_norm"):
            self.plan.clip_norm = (
                self._positive(self.plan.options.pop(key, None), key, "optimizer") or self.plan.clip_norm
            )
        value = self._positive(self.plan.options.pop("clipvalue", None), "clipvalue", "optimizer")
        self.plan.clip_value = value or self.plan.clip_value

    def _rate(self, setting: Setting | None) -> None:
        if setting is None:
            return
        rate = setting.positional[0] if setting.positional else None
        for key in ("learning_rate", "lr"):
            rate = self.plan.options.pop(key, None) if self.plan.options.get(key) is not None else rate
        if isinstance(rate, Called):
            self._schedule(Schedule(rate.name, rate.positional, rate.named, setting.line))
        elif rate is not None:
            self.plan.learning_rate = self._positive(rate, "learning_rate", "optimizer") or self.plan.learning_rate

    def _section_schedule(self) -> None:
        setting = self.network.schedule
        if setting is not None:
            self._schedule(Schedule(setting.name, setting.positional, setting.params, setting.line), keep_rate=True)

    def _schedule(self, schedule: Schedule, *, keep_rate: bool = False) -> None:
        by_lower = {name.lower(): name for name in SCHEDULES}
        known = by_lower | {"exponential": "ExponentialDecay", "step": "StepDecay", "cosine": "CosineDecay"}
        known |= {
            "cosineannealing": "CosineDecay",
            "cosineannealinglr": "CosineDecay",
            "warmupcosinedecay": "WarmupCosine",
        }
        name = known.get(schedule.name.lower().replace("_", ""))
        named = {"initial_learning_rate", "initial_lr", "initial", "learning_rate"} & set(schedule.named)
        first = schedule.named[min(named)] if named else None
        positional = schedule.positional
        if first is None and positional and not keep_rate:
            first, positional = positional[0], positional[1:]
        if isinstance(first, int | float) and not isinstance(first, bool):
            self.plan.learning_rate = self._positive(first, "the first learning rate", "optimizer") or 1e-3
        if name is None:
            near = nearest(schedule.name, SCHEDULES, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(SCHEDULES)}"
            why = f"there is no schedule {schedule.name!r}; {hint}; the learning rate stays as it is"
            self.say(Severity.WARNING, schedule.line, why)
            return
        rest = {key: value for key, value in schedule.named.items() if key not in named}
        self.plan.schedule = Schedule(name, positional, rest, schedule.line)

    # -- training --------------------------------------------------------------------------------------------------

    def _training(self) -> None:
        given = self.network.training
        self.plan.epochs = self._whole(given.get("epochs"), "epochs", EPOCHS)
        self.plan.batch_size = self._whole(given.get("batch_size"), "batch_size", BATCH)
        self.plan.trials = self._whole(given.get("trials", given.get("n_trials")), "trials", 10)
        split = given.get("validation_split")
        if split is not None:
            if isinstance(split, bool) or not isinstance(split, int | float) or not 0 <= split <= 1:
                self.say_at(
                    Severity.ERROR,
                    "train.validation_split",
                    f"validation_split must lie between 0 and 1, not {shown(split)}",
                )
            else:
                self.plan.validation_split = float(split)
        clip = given.get("gradient_clip", given.get("clip_norm", given.get("gradient_clipping")))
        if isinstance(clip, dict):
            clip = next((v for v in clip.values() if isinstance(v, int | float)), None)
        if clip not in (None, False):
            self.plan.clip_norm = self._positive(clip, "gradient_clip", "train") or self.plan.clip_norm
        rate = given.get("learning_rate")
        if isinstance(rate, int | float) and not isinstance(rate, bool) and "learning_rate" not in self.plan.options:
            self.plan.learning_rate = self._positive(rate, "learning_rate", "train") or self.plan.learning_rate
        if given.get("shuffle") is False:
            self.plan.shuffle = False
        if given.get("search_method") is not None:
            self.plan.search_method = str(given["search_method"])
            if self.plan.search_method not in ("bayesian", "random", "grid"):
                why = f"search_method is bayesian, random or grid, not {self.plan.search_method!r}"
                self.say_at(Severity.WARNING, "train.search_method", why)
        self.plan.patience = self._patience(given)

    def _unread(self) -> None:
        """What stands in the file and changes nothing: a mistyped name must not go unnoticed."""
        network, optimizer = self.network, self.network.optimizer
        for key in network.training:
            self._unknown("train", key, _TRAIN, f"train.{key}")
        for key in network.execution:
            where = "execution" if f"execution.{key}" in network.lines else "execute"
            self._unknown(where, key, ["device"], f"{where}.{key}")
        if optimizer is not None and self.plan.optimizer.lower() == optimizer.name.lower().replace("_", ""):
            known = [*_ANY_OPTIMIZER, *_OPTIMIZER_OPTIONS[self.plan.optimizer]]
            for key in optimizer.params:
                self._unknown(self.plan.optimizer, key, known, "optimizer")
        self._metrics()

    def _metrics(self) -> None:
        network = self.network
        loss = LOSSES.get(self.taken or "") or (known_loss(network.loss.name) if network.loss is not None else None)
        if loss is None:
            return
        names = [name for name in network.metrics if metric_of(name, loss.kind) is None and known_loss(name) is None]
        if names:
            why = f"not computed for this loss: {', '.join(names)}; {', '.join(_COMPUTED[loss.kind])} are"
            self.say_at(Severity.INFO, "metrics", why)

    def _unknown(self, owner: str, key: str, known: list[str], place: str) -> None:
        if key in known:
            return
        near = nearest(key, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else "it has no effect here"
        self.say_at(Severity.WARNING if near else Severity.INFO, place, f"{owner} has no {key!r}; {hint}")

    def _patience(self, given: dict[str, Any]) -> int | None:
        stop = given.get("early_stopping")
        callbacks = given.get("callbacks")
        for each in callbacks if isinstance(callbacks, list | tuple) else []:
            name = each.name if isinstance(each, Called) else str(each)
            if name.lower().replace("_", "").startswith("earlystopping"):
                stop = each if isinstance(each, Called) else True
        if stop in (None, False):
            return None
        if isinstance(stop, Called):
            stop = stop.argument(0, "patience", default=5)
        if isinstance(stop, dict):
            stop = stop.get("patience", 5)
        return stop if isinstance(stop, int) and not isinstance(stop, bool) and stop > 0 else 5

    def _device(self) -> None:
        for where, device in (
            ("execution", self.network.execution.get("device")),
            ("train", self.network.training.get("device")),
        ):
            why = None if device is None else no_device(str(device))
            if why is not None:
                key = f"{where}.device" if f"{where}.device" in self.network.lines else "execute.device"
                self.say_at(Severity.ERROR, key if key in self.network.lines else where, why)
        for layer in self.network.each_layer():
            why = None if layer.device is None else no_device(layer.device)
            if why is not None:
                self.say(Severity.ERROR, layer.line, f"{layer.name}: {why}", layer.column)

    def _whole(self, value: Any, name: str, default: int) -> int:
        place = f"train.{name}"
        if value is None:
            return default
        if isinstance(value, float) and value == int(value):
            self.say_at(Severity.WARNING, place, f"{name}={value} is taken as {int(value)}")
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            self.say_at(Severity.ERROR, place, f"{name} must be a whole number above 0, not {shown(value)}")
            return default
        return value

    def _positive(self, value: Any, name: str, section: str) -> float | None:
        if value is None:
            return None
        key = f"{section}.{name}"
        place = key if key in self.network.lines else section
        if isinstance(value, Reference):
            self.say_at(Severity.ERROR, place, f"{value.text!r} is not defined: {name} must be a number")
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            self.say_at(Severity.ERROR, place, f"{name} must be a number above 0, not {shown(value)}")
            return None
        return float(value)
