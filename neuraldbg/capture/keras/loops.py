"""Steps that are no `Model.fit` of Keras' own: loops of the user's over tf.GradientTape, and a `train_step` that runs
eagerly. What their layers put out under a tape, the gradients an optimizer is handed and how far it moved the weights
are read as they come by; nothing is computed for it. A step inside of a tf.function is only traced: that is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import keras

from neuraldbg.capture.keras.alert import stop_if_any_gradient
from neuraldbg.capture.keras.training import Training, function_owner
from neuraldbg.capture.keras.values import concrete, measured, value_of
from neuraldbg.records import Kind, Phase

if TYPE_CHECKING:
    from neuraldbg.capture.keras.attach import KerasCapture

MOST_ROWS = 4096  # of layers in one step
UNSEEN = (
    "a training step of your own is compiled by a tf.function: it is not watched "
    "(tf.config.run_functions_eagerly(True) before it runs it line by line, and it is)"
)


NOT_APPLIED = "tapes were used, and no Keras optimizer applied what they gave: updates made by hand are not watched"


class Loops:
    def __init__(self, capture: KerasCapture) -> None:
        self.capture = capture
        self.taping = 0  # tapes that are open in steps that are watched here
        self.steps = 0
        self.traced = False  # a step was met that is only traced
        self.taped = False  # a tape was opened by the user
        self._aside = 0  # what runs belongs to a `fit` that is watched from outside, or is ours
        self._fitting: Training | None = None  # whose own train_step runs eagerly inside of `fit`
        # of the tapes that were open last; kept until the next, since two networks may share them
        self._roots: list[Any] = []  # models that ran
        self._rows: list[tuple[Any, Any]] = []  # layer, numbers of what it put out
        self._losses: dict[int, Any] = {}  # id of a variable -> what its gradient was asked of
        self._began = 0
        guard = capture.guard
        self._see = guard.shield("layers of a loop")(self._measure)
        self._found = guard.shield("the model of a loop")(self._training_of)
        self._before = guard.shield("updates of a loop")(self._begin)
        self._after = guard.shield("updates of a loop")(self._end)

    def install(self) -> None:
        """On JAX a step is a function of its state: there is nothing to stand beside."""
        owner = next(each for each in keras.optimizers.Optimizer.__mro__ if "apply" in vars(each))
        patches = self.capture.patches
        if keras.backend.backend() != "tensorflow":
            return
        import tensorflow as tf

        tape = tf.GradientTape
        patches.replace(owner, "apply", self._applying(owner.apply))
        patches.replace(tape, "__enter__", self._entering(tape.__enter__))
        patches.replace(tape, "__exit__", self._leaving(tape.__exit__))
        patches.replace(tape, "gradient", self._asking(tape.gradient))

    @contextmanager
    def aside(self, own: Training | None = None) -> Iterator[None]:
        """Whatever runs now is no loop of the user's; `own` is a training whose own train_step is looked into."""
        before, self._fitting = self._fitting, own
        self._aside += own is None
        try:
            yield
        finally:
            self._aside -= own is None
            self._fitting = before

    # -- the tape ------------------------------------------------------------------------------------------------------

    def _entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def __enter__(tape: Any) -> Any:
            if self.capture.watches and not self._aside and _eager():
                if not self.taping:
                    self._roots, self._rows, self._losses = [], [], {}
                    self._began, self.taped = self.capture.now_ns(), True
                self.taping += 1
            return original(tape)

        return __enter__

    def _leaving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def __exit__(tape: Any, *args: Any) -> Any:
            if self.taping and not self._aside and _eager():
                self.taping -= 1
            return original(tape, *args)

        return __exit__

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(tape, target, sources, *args, **kwargs)
            if self.capture.watches and not self._aside and getattr(target, "shape", None) == ():
                loss = concrete(target)
                variables = sources if isinstance(sources, list | tuple) else [sources]
                self._losses.update((id(each), loss) for each in variables)
            return found

        return gradient

    # -- layers, called from `LayerCalls` ------------------------------------------------------------------------------

    @contextmanager
    def running(self, root: Any) -> Iterator[None]:
        """Around the outermost layer under a tape."""
        stops, training = self.capture.stops, self.capture.trainings.get(root)
        if stops is None or training is None:
            yield
        else:
            with stops.inside(training, as_it_runs=True):
                yield
        if not any(each is root for each in self._roots):
            self._roots.append(root)

    def see(self, layer: Any, output: Any) -> None:
        if self.capture.budget.full and len(self._rows) < MOST_ROWS:
            self._see(layer, output)

    def _measure(self, layer: Any, output: Any) -> None:
        row = measured(concrete(output))
        if row is not None:
            self._rows.append((layer, row))

    # -- the update ----------------------------------------------------------------------------------------------------

    def _applying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if not self.capture.watches or self._aside:
                return original(optimizer, grads, trainable_variables)
            if not _eager():
                self.traced = True
                return original(optimizer, grads, trainable_variables)
            grads = list(grads)
            variables = None if trainable_variables is None else list(trainable_variables)
            kept = self._before(optimizer, grads, variables)
            result = original(optimizer, grads, variables)
            if kept is not None:
                self._after(optimizer, *kept)
                if self.capture.stops is not None and self._fitting is None:
                    self.capture.stops.step_done(kept[0])
            return result

        return apply

    def _begin(self, optimizer: Any, grads: list[Any], variables: list[Any] | None) -> Any:
        """The training, its variables and their values, where this step is looked at in full."""
        variables = list(optimizer._trainable_variables) if variables is None else variables
        training = self._fitting or self._found(variables)
        if training is None:
            return None
        training.describe(function_owner(self.capture, training))
        began = self.capture.now_ns()
        full = self.capture.budget.full
        if full:
            self._write(training, variables, grads)
        if self.capture.stop_on_nan:
            stop_if_any_gradient(grads, self.capture.recorder.step)
        kept = training.copies(variables, [value_of(each) for each in variables]) if full and not self._fitting else []
        training.spent(self.capture.now_ns() - began)
        return training, variables, kept

    def _training_of(self, variables: list[Any]) -> Training | None:
        """That of the model that ran under a tape and has these variables."""
        wanted = {id(each) for each in variables}
        for root in reversed(self._roots):
            if wanted & {id(each) for each in root.trainable_variables}:
                return self.capture.training_of(root)
        return None

    def _write(self, training: Training, variables: list[Any], grads: list[Any]) -> None:
        slots: dict[int, int] = {}
        rows, self._rows = self._rows, []
        for layer, row in rows:
            site = training.layer_sites.get(id(layer))
            if site is None:
                self._rows.append((layer, row))  # of another network under the same tape
            elif training.asked_for(site):
                slots[site] = slots.get(site, -1) + 1
                where = (Kind.ACTIVATION, Phase.FORWARD, slots[site], training.passes)
                self.capture.recorder.stats(site, where, row)
        training.write_gradients(variables, grads)

    def _end(self, optimizer: Any, training: Training, variables: list[Any], kept: list[Any]) -> None:
        loss = next((self._losses[id(each)] for each in variables if id(each) in self._losses), None)
        self.steps += 1
        if self._fitting is None:
            training.optimizer_met(optimizer, variables, "custom")
            training.loop_step(self._began, loss, (variables, kept), optimizer)
            self._began = self.capture.now_ns()


def _eager() -> bool:
    import tensorflow as tf

    return bool(tf.executing_eagerly())
