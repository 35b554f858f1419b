"""The training loop of a network, as a person would write it: only what the file asks for."""

from __future__ import annotations

from typing import Any

from neuraldbg.dsl.build.code import Code
from neuraldbg.dsl.build.schedules import schedule_code
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.losses import Loss, loss_of
from neuraldbg.dsl.settings import Plan, metric_of

_LOSSES = {
    "cross_entropy": "nn.CrossEntropyLoss()",
    "mse": "nn.MSELoss()",
    "mae": "nn.L1Loss()",
    "huber": "nn.HuberLoss()",
    "poisson": "nn.PoissonNLLLoss(log_input=False)",
    "log_cosh": "LogCosh()",
    "kl_divergence": "KLDivergence()",
    "cosine": "CosineLoss()",
    "hinge": "Hinge()",
}
_OPTIONS = {  # Keras -> PyTorch, for the optimizers that know it
    "epsilon": "eps",
    "momentum": "momentum",
    "nesterov": "nesterov",
    "weight_decay": "weight_decay",
    "amsgrad": "amsgrad",
    "rho": "rho",
    "eps": "eps",
    "centered": "centered",
}
_KNOWS = {
    "Adam": {"eps", "weight_decay", "amsgrad"},
    "AdamW": {"eps", "weight_decay", "amsgrad"},
    "SGD": {"momentum", "nesterov", "weight_decay"},
    "RMSprop": {"eps", "momentum", "alpha", "weight_decay", "centered"},
    "Adagrad": {"eps", "weight_decay"},
    "Adadelta": {"eps", "rho", "weight_decay"},
    "Adamax": {"eps", "weight_decay"},
    "NAdam": {"eps", "weight_decay"},
    "RAdam": {"eps", "weight_decay"},
}
COUNTED = {"precision": "guessed", "recall": "positive"}  # of what the hits are a part
WIDTH = 100  # of a line
MANY = 5  # of the classes that a top_5_accuracy looks at


class TrainingCode:
    """`code` is the functions `train` and `evaluate`."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.loss = task_loss(graph)
        self.code = Code()
        self.math = False
        self.blocks = {
            name for name in (_LOSSES.get(self.loss.name, "").rstrip("()"),) if not name.startswith("nn.") and name
        }
        self.metrics = metrics_of(graph, self.loss)
        self.line = graph.lines.get("train", graph.network.line)
        self._train()
        self.code.add()
        self.code.add()
        self._evaluate()

    # -- train -----------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        code, plan, lines = self.code, self.plan, self.graph.lines
        code.add(f"def train(model, batches, validation=None, epochs={plan.epochs}, report=print):", self.line)
        with code.indented():
            code.add('"""Train on an iterable of batches, the targets last in each."""', self.line)
            code.add(f"criterion = {self._criterion()}", lines.get("loss", self.line))
            code.add(f"optimizer = {self._optimizer()}", lines.get("optimizer", self.line))
            schedule = None
            if plan.schedule is not None:
                schedule = schedule_code(plan.schedule, plan.learning_rate)
                self.math = "math." in schedule.text
                code.add(f"scheduler = {schedule.text}", plan.schedule.line)
            if plan.patience is not None:
                code.add("best, waited = float('inf'), 0", lines.get("train.early_stopping", self.line))
            code.add("for epoch in range(epochs):", lines.get("train.epochs", self.line))
            with code.indented():
                code.add("model.train()", self.line)
                self._totals()
                code.add(f"for {self._unpacked()} in batches:", lines.get("train.batch_size", self.line))
                with code.indented():
                    self._update(schedule is not None and schedule.per_step)
                self._after_epoch(schedule is not None and not schedule.per_step)

    def _totals(self) -> None:
        means = [name for name in self.metrics if name not in COUNTED]
        counts = [COUNTED[name] for name in self.metrics if name in COUNTED]
        hits = ["hits"] if counts else []
        self.code.add(" = ".join(["seen", "total", *means, *hits, *counts, "0"]), self.line)

    def _unpacked(self) -> str:
        return "inputs, targets" if len(self.graph.inputs) == 1 else "*inputs, targets"

    def _update(self, scheduled: bool) -> None:
        code, plan, lines = self.code, self.plan, self.graph.lines
        loss_line, optimizer_line = lines.get("loss", self.line), lines.get("optimizer", self.line)
        code.add("optimizer.zero_grad()", optimizer_line)
        code.add(f"outputs = {self._call()}", lines.get("layers", self.line))
        code.add(f"loss = {self._loss_call()}", loss_line)
        code.add("(loss + model.penalty()).backward()" if self.graph.penalties else "loss.backward()", loss_line)
        clip_line = lines.get("train.gradient_clip", optimizer_line)
        if plan.clip_norm is not None:
            code.add(f"nn.utils.clip_grad_norm_(model.parameters(), {plan.clip_norm})", clip_line)
        if plan.clip_value is not None:
            code.add(f"nn.utils.clip_grad_value_(model.parameters(), {plan.clip_value})", optimizer_line)
        code.add("optimizer.step()", optimizer_line)
        if scheduled and plan.schedule is not None:
            code.add("scheduler.step()", plan.schedule.line)
        self._count()

    def _call(self) -> str:
        return "model(inputs)" if len(self.graph.inputs) == 1 else "model(*inputs)"

    def _loss_call(self) -> str:
        if self.loss.name == "cross_entropy" and len(self.graph.shape) > 1:
            return "criterion(outputs.flatten(0, -2), targets.flatten())"
        return "criterion(outputs, targets)"

    def _count(self) -> None:
        code, line = self.code, self.graph.lines.get("metrics", self.line)
        code.add("seen += len(targets)", self.line)
        code.add("total += loss.item() * len(targets)", self.line)
        for name in self.metrics:
            if name not in COUNTED:
                code.add(f"{name} += {self._metric(name)}.item() * len(targets)", line)
        if any(name in COUNTED for name in self.metrics):
            code.add(f"guesses = (outputs > {self._threshold()}).float()", line)
            code.add("hits += (guesses * targets).sum().item()", line)
        for name in self.metrics:
            if name in COUNTED:
                code.add(f"{COUNTED[name]} += {'guesses' if name == 'precision' else 'targets'}.sum().item()", line)

    def _measured(self, name: str) -> str:
        return f"hits / max({COUNTED[name]}, 1)" if name in COUNTED else f"{name} / seen"

    def _metric(self, name: str) -> str:
        if name == "accuracy":
            guess = "outputs.argmax(-1)" if self.loss.kind == "classes" else f"(outputs > {self._threshold()}).float()"
            return f"({guess} == targets).float().mean()"
        if name == "top_5_accuracy":
            return f"(outputs.topk({MANY}, -1).indices == targets.unsqueeze(-1)).any(-1).float().mean()"
        return "(outputs - targets).abs().mean()" if name == "mae" else "(outputs - targets).square().mean()"

    def _threshold(self) -> str:
        last = self.graph.steps[-1].activation if self.graph.steps else None
        return "0.5" if last in ("sigmoid", "softmax") else "0"

    def _after_epoch(self, scheduled: bool) -> None:
        code, plan = self.code, self.plan
        told = [f'"{name}": {self._measured(name)}' for name in self.metrics]
        self._dict("told = ", ['"epoch": epoch + 1', '"loss": total / seen', *told])
        code.add("if validation is not None:", self.line)
        with code.indented():
            code.add("told.update(evaluate(model, criterion, validation))", self.line)
        if scheduled and plan.schedule is not None:
            code.add("scheduler.step()", plan.schedule.line)
        code.add("report(told)", self.line)
        if plan.patience is not None:
            self._stop_early(plan.patience)

    def _stop_early(self, patience: int) -> None:
        code, line = self.code, self.graph.lines.get("train.early_stopping", self.line)
        code.add("watched = told.get('val_loss', told['loss'])", line)
        code.add("best, waited = (watched, 0) if watched < best else (best, waited + 1)", line)
        code.add(f"if waited >= {patience}:", line)
        with code.indented():
            code.add("break", line)

    def _evaluate(self) -> None:
        code = self.code
        code.add("@torch.no_grad()", self.line)
        code.add("def evaluate(model, criterion, batches):", self.line)
        with code.indented():
            code.add('"""Loss and metrics over batches the model does not learn from."""', self.line)
            code.add("model.eval()", self.line)
            self._totals()
            code.add(f"for {self._unpacked()} in batches:", self.line)
            with code.indented():
                code.add(f"outputs = {self._call()}", self.line)
                code.add(f"loss = {self._loss_call()}", self.line)
                self._count()
            told = ['"val_loss": total / seen', *(f'"val_{name}": {self._measured(name)}' for name in self.metrics)]
            self._dict("return ", told)

    def _dict(self, head: str, parts: list[str]) -> None:
        """On one line where it fits."""
        text = f"{head}{{{', '.join(parts)}}}"
        if len(text) <= WIDTH:
            self.code.add(text, self.line)
            return
        self.code.add(f"{head}{{", self.line)
        with self.code.indented():
            for part in parts:
                self.code.add(f"{part},", self.line)
        self.code.add("}", self.line)

    # -- expressions -----------------------------------------------------------------------------------------------

    def _criterion(self) -> str:
        if self.loss.name != "binary_cross_entropy":
            return _LOSSES[self.loss.name]
        last = self.graph.steps[-1].activation if self.graph.steps else None
        return "nn.BCELoss()" if last in ("sigmoid", "softmax") else "nn.BCEWithLogitsLoss()"

    def _optimizer(self) -> str:
        plan = self.plan
        parts = ["model.parameters()", f"lr={plan.learning_rate:g}"]
        betas = [plan.options.get(key) for key in ("beta_1", "beta_2")]
        if any(is_number(beta) for beta in betas) and plan.optimizer in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam"):
            first, second = (b if is_number(b) else d for b, d in zip(betas, (0.9, 0.999), strict=True))
            parts.append(f"betas=({first}, {second})")
        for key, value in plan.options.items():
            name = _OPTIONS.get(key)
            name = "alpha" if name == "rho" and plan.optimizer == "RMSprop" else name
            if name in _KNOWS[plan.optimizer] and (is_number(value) or isinstance(value, bool)):
                parts.append(f"{name}={value}")
        return f"torch.optim.{plan.optimizer}({', '.join(parts)})"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def metrics_of(graph: Graph, loss: Loss) -> list[str]:
    """Of those the file asks for, the ones that are computed."""
    wanted = dict.fromkeys(metric_of(name, loss.kind) for name in graph.network.metrics)
    few = {"top_5_accuracy"} if graph.shape[-1] <= MANY else set()
    return sorted(name for name in wanted if name is not None and name not in few)


def task_loss(graph: Graph) -> Loss:
    """The loss, with what was left out of the last layer put back into account."""
    last = graph.steps[-1] if graph.steps else None
    activation = last.activation if last else None
    if graph.dropped_softmax is not None:
        activation = "softmax"
    if graph.fused_sigmoid is not None:
        activation = "sigmoid"
    loss = loss_of(graph.network, activation)
    if loss.name == "cross_entropy" and graph.shape[-1] == 1:
        return Loss("binary_cross_entropy", "binary", assumed=True)
    return loss
