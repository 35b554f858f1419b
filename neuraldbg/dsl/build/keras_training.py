"""How a network is trained with Keras: `compile` and `fit` with what the file asks for, and nothing else."""

from __future__ import annotations

from neuraldbg.dsl.build.code import Code
from neuraldbg.dsl.build.keras_layers import call
from neuraldbg.dsl.build.schedules import schedule_numbers
from neuraldbg.dsl.build.training_code import COUNTED, MANY, is_number, metrics_of, task_loss
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.settings import Plan
from neuraldbg.errors import BackendMissing

_LOSSES = {
    "cross_entropy": "keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
    "mse": "keras.losses.MeanSquaredError()",
    "mae": "keras.losses.MeanAbsoluteError()",
    "huber": "keras.losses.Huber()",
    "poisson": "keras.losses.Poisson()",
    "log_cosh": "keras.losses.LogCosh()",
    "kl_divergence": "keras.losses.KLDivergence()",
    "cosine": "keras.losses.CosineSimilarity()",
    "hinge": "keras.losses.Hinge()",
}
_KNOWS = {
    "Adam": {"beta_1", "beta_2", "epsilon", "weight_decay", "amsgrad"},
    "AdamW": {"beta_1", "beta_2", "epsilon", "weight_decay", "amsgrad"},
    "SGD": {"momentum", "nesterov", "weight_decay"},
    "RMSprop": {"rho", "momentum", "epsilon", "centered", "weight_decay"},
    "Adagrad": {"epsilon", "weight_decay"},
    "Adadelta": {"rho", "epsilon", "weight_decay"},
    "Adamax": {"beta_1", "beta_2", "epsilon", "weight_decay"},
    "NAdam": {"beta_1", "beta_2", "epsilon", "weight_decay"},
}
_NAMES = {"NAdam": "Nadam"}


class KerasTrainingCode:
    """`code` is the function `train`."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.loss = task_loss(graph)
        self.metrics = metrics_of(graph, self.loss)
        self.code = Code()
        self.blocks: set[str] = set()
        self.line = graph.lines.get("train", graph.network.line)
        self._train()

    def _train(self) -> None:
        code, plan, lines = self.code, self.plan, self.graph.lines
        named = f"epochs={plan.epochs}, batch_size={plan.batch_size}, callbacks=(), verbose=2"
        code.add(f"def train(model, inputs, targets, validation=None, {named}):", self.line)
        with code.indented():
            code.add('"""Train on arrays, the samples first in each; returns what every epoch told."""', self.line)
            code.add("model.compile(", self.line)
            with code.indented():
                code.add(f"optimizer={self._optimizer()},", lines.get("optimizer", self.line))
                code.add(f"loss={self._criterion()},", lines.get("loss", self.line))
                code.add(f"metrics=[{', '.join(map(self._metric, self.metrics))}],", lines.get("metrics", self.line))
            code.add(")", self.line)
            code.add("callbacks = list(callbacks)", self.line)
            self._callbacks()
            # where Keras makes its step, and where the optimizer is first met: findings on it name this line
            code.add("history = model.fit(", lines.get("optimizer", self.line))
            with code.indented():
                code.add(
                    "inputs, targets, validation_data=validation, epochs=epochs, batch_size=batch_size,", self.line
                )
                code.add(f"shuffle={plan.shuffle}, callbacks=callbacks, verbose=verbose,", self.line)
            code.add(")", self.line)
            code.add("return history.history", self.line)

    def _callbacks(self) -> None:
        code, plan = self.code, self.plan
        if plan.schedule is not None and plan.schedule.name == "StepDecay":
            factor, epochs = schedule_numbers(plan.schedule)
            rate = f"lambda epoch: {plan.learning_rate:g} * {factor:g} ** (epoch // {epochs:g})"
            code.add(f"callbacks.append(keras.callbacks.LearningRateScheduler({rate}))", plan.schedule.line)
        if plan.patience is not None:
            line = self.graph.lines.get("train.early_stopping", self.line)
            watched = '"loss" if validation is None else "val_loss"'
            code.add(f"watched = {watched}", line)
            code.add(f"callbacks.append(keras.callbacks.EarlyStopping(watched, patience={plan.patience}))", line)

    # -- expressions -----------------------------------------------------------------------------------------------

    def _criterion(self) -> str:
        if self.loss.name != "binary_cross_entropy":
            return _LOSSES[self.loss.name]
        last = self.graph.steps[-1].activation if self.graph.steps else None
        inner = "" if last in ("sigmoid", "softmax") else "from_logits=True"
        return f"keras.losses.BinaryCrossentropy({inner})"

    def _metric(self, name: str) -> str:
        if name == "top_5_accuracy":
            return f'keras.metrics.SparseTopKCategoricalAccuracy({MANY}, "{name}")'
        if name not in ("accuracy", *COUNTED):
            return f'"{name}"'
        if self.loss.kind == "classes":
            return 'keras.metrics.SparseCategoricalAccuracy("accuracy")'
        last = self.graph.steps[-1].activation if self.graph.steps else None
        threshold = 0.5 if last in ("sigmoid", "softmax") else 0.0
        if name in COUNTED:
            return f'keras.metrics.{name.capitalize()}(thresholds={threshold}, name="{name}")'
        return f'keras.metrics.BinaryAccuracy("accuracy", threshold={threshold})'

    def _optimizer(self) -> str:
        plan = self.plan
        if plan.optimizer not in _KNOWS:
            raise BackendMissing(f"Keras has no optimizer {plan.optimizer}; Adam is near, or run it with -b pytorch")
        given = {
            key: value
            for key, value in plan.options.items()
            if key in _KNOWS[plan.optimizer] and (is_number(value) or isinstance(value, bool))
        }
        clipped = {"global_clipnorm": plan.clip_norm, "clipvalue": None if plan.clip_norm else plan.clip_value}
        return call(f"keras.optimizers.{_NAMES.get(plan.optimizer, plan.optimizer)}", self._rate(), **given, **clipped)

    def _rate(self) -> str:
        plan, schedule = self.plan, self.plan.schedule
        rate = repr(float(plan.learning_rate))
        if schedule is None or schedule.name == "StepDecay":
            return rate
        numbers = [f"{number:g}" for number in schedule_numbers(schedule)]
        if schedule.name == "WarmupCosine":
            self.blocks.add("WarmupCosine")
            return f"WarmupCosine({', '.join([rate, *numbers])})"
        name = "PolynomialDecay" if schedule.name == "LinearDecay" else schedule.name
        return f"keras.optimizers.schedules.{name}({', '.join([rate, *numbers])})"
