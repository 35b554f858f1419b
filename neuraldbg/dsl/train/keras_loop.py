"""One training with Keras."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraldbg.dsl.build.built import Built
from neuraldbg.dsl.train.loop import Bar, Options, Say, Trained
from neuraldbg.dsl.train.samples import Array, Samples


def train_keras(built: Built, samples: Samples, options: Options, say: Say) -> Trained:
    import keras

    if (options.device or built.graph.network.device or "cpu").lower() not in ("cpu", "auto"):
        say(f"Keras picks the device itself: {keras.backend.backend()} uses what it finds")
    keras.utils.set_random_seed(options.seed)
    model = built.make()
    epochs, size = options.epochs or built.plan.epochs, options.batch or built.plan.batch_size
    (inputs, targets), validation = _split(built, samples, options, size)
    done = Trained(built.graph.network.name, model)
    bar = Bar(epochs) if options.bar else None
    batches = -(-len(targets) // size)

    def report(epoch: int, logs: dict[str, Any]) -> None:
        told = {"epoch": epoch + 1, **{name: float(value) for name, value in _in_order(logs)}}
        done.history.append(told)
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in told.items() if name != "epoch")
        if bar is not None:
            bar.clear()
        say(f"epoch {epoch + 1}/{epochs}: {numbers}")

    hooks: dict[str, Any] = {"on_epoch_end": report}
    if bar is not None:
        hooks["on_train_batch_begin"] = lambda batch, _: bar.show(batch, batches)
    built.train(
        model,
        inputs,
        targets,
        validation,
        epochs=epochs,
        batch_size=size,
        callbacks=[keras.callbacks.LambdaCallback(**hooks)],
        verbose=0,
    )
    if len(done.history) < epochs:
        say(f"stopped early after epoch {len(done.history)}: the loss no longer fell")
    return done


def _in_order(logs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The loss first, as the PyTorch loop tells it; the learning rate is no measurement."""
    names = sorted(logs, key=lambda name: (name.startswith("val_"), "loss" not in name))
    return [(name, logs[name]) for name in names if name != "learning_rate"]


def _split(built: Built, samples: Samples, options: Options, size: int) -> tuple[tuple[Any, Array], Any]:
    held = min(int(len(samples) * built.plan.validation_split), len(samples) - 1)
    order = np.random.default_rng(options.seed).permutation(len(samples))
    kept = order[held:][: None if options.steps is None else options.steps * size]

    def some(places: Any) -> tuple[Any, Array]:
        inputs = [array[places] for array in samples.inputs]
        return (inputs if len(inputs) > 1 else inputs[0]), samples.targets[places]

    return some(kept), (some(order[:held]) if held else None)
