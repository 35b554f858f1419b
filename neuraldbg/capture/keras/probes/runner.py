"""Runs the experiments when a script is over: where it did not learn, unheard, and without a trace but their facts."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import keras

from neuraldbg.capture.experiments import NAMES
from neuraldbg.capture.guard import attempt
from neuraldbg.capture.keras.probes.specimen import Skip

if TYPE_CHECKING:
    from neuraldbg.capture.keras.training import Training

MADE = "overfit"
FEWEST = 2  # updates


def experiment(training: Training, model: Any, *, strict: bool, interrupted: bool) -> None:
    """Write what the experiments told of one training, or why they were not made."""
    recorder = training.recorder
    for name in NAMES:
        if name != MADE:
            recorder.fact("probe", name=name, skipped="this experiment is made with PyTorch only")
    why = _why_not(training, model, interrupted=interrupted)
    fields = {"skipped": why} if why is not None else _asked(training, model, strict=strict)
    recorder.fact("probe", name=MADE, model=training.name, model_site=training.site, **fields)


def _asked(training: Training, model: Any, *, strict: bool) -> dict[str, Any]:
    from neuraldbg.capture.keras.probes.overfit import overfit

    def told() -> dict[str, Any]:
        try:
            return overfit(model, training.specimen, training.passes)
        except Skip as reason:
            return {"skipped": str(reason)}

    with _unheard(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fields = told() if strict else attempt(told)
    return fields or {"skipped": "the model could not be run again outside of its script"}


def _unheard() -> Any:
    from contextlib import ExitStack

    stack = ExitStack()
    stack.enter_context(redirect_stdout(io.StringIO()))
    stack.enter_context(redirect_stderr(io.StringIO()))
    return stack


def _why_not(training: Training, model: Any, *, interrupted: bool) -> str | None:
    specimen = training.specimen
    if interrupted:
        return "the script was interrupted"
    if model is None or not getattr(model, "built", False) or getattr(model, "optimizer", None) is None:
        return "the model is gone"
    if not training.looks_inside:
        return "its train_step is its own: what it computes cannot be computed again"
    if training.passes < FEWEST:
        return f"fewer than {FEWEST} updates"
    if specimen.why_not is not None or not specimen.batches:
        return specimen.why_not or "none of its batches could be kept"
    if specimen.learned():
        return "the run learned what it was shown; with Keras it is only asked where one did not"
    if keras.distribution.distribution() is not None:
        return "the model is spread over several devices"
    return None
