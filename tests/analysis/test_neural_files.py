"""Patches of `.neural` files: one edit where it belongs, and none where it is not sure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neuraldbg.analysis.fixes.neural_files import neural_fixes
from neuraldbg.records import Finding, Severity

FILE = """network N {{
    input: (8,)
    layers:
        {layer}
        Output(3)
    loss: mse
    optimizer: {optimizer}
    train {{ epochs: 2 }}
}}
"""


class OneFile:
    """What the edits ask of the evidence of a run."""

    def __init__(self, text: str, name: str = "n.neural") -> None:
        self.file = {"file": name, "text": text}

    def facts(self, type: str) -> list[dict[str, Any]]:
        return {"source_file": [self.file], "optimizer": [{"class": "Adam", "name": "optimizer", "site": 1}]}.get(
            type, []
        )

    def text(self, file: str) -> str | None:
        return self.file["text"] if file == self.file["file"] else None

    def curve(self, name: str) -> Any:
        return SimpleNamespace(values=np.array({"lr": [0.5], "grad_norm": [1.0] * 9 + [40.0]}[name]))

    def once(self, _: Any, make: Any) -> Any:
        return make()

    def of_call(self, _: Any) -> dict[str, Any]:
        return {"site": np.array([1])}

    def of_kind(self, *_: Any) -> list[Any]:
        return []


def changed(kind: str, text: str, line: int | None) -> list[tuple[str, str]]:
    """Lines that go and come."""
    source = None if line is None else f"n.neural:{line}"
    fixes = list(neural_fixes(Finding(kind, Severity.WARNING, "", source=source), OneFile(text)))  # type: ignore[arg-type]
    pairs = []
    for fix in fixes:
        lines = (fix.patch or "").splitlines()
        gone = [each[1:].strip() for each in lines if each.startswith("-") and not each.startswith("---")]
        come = [each[1:].strip() for each in lines if each.startswith("+") and not each.startswith("+++")]
        pairs.append((" ".join(gone), " ".join(come)))
    return pairs


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("Adam(learning_rate=0.5)", "Adam(learning_rate=0.05)"),
        ("Adam(lr: 0.5)", "Adam(lr: 0.05)"),
        ('"Adam(learning_rate=0.5)"', '"Adam(learning_rate=0.05)"'),
        ("Adam(learning_rate=ExponentialDecay(0.5, 100, 0.9))", "Adam(learning_rate=ExponentialDecay(0.05, 100, 0.9))"),
        ('"adam"', "adam(learning_rate=0.05)"),
        ("Adam", "Adam(learning_rate=0.05)"),
    ],
)
def test_a_rate_is_lowered_in_every_way_it_is_written(written: str, becomes: str) -> None:
    text = FILE.format(layer="Dense(4)", optimizer=written)
    assert changed("learning_rate_too_high", text, 7) == [(f"optimizer: {written}", f"optimizer: {becomes}")]


@pytest.mark.parametrize(
    ("layer", "becomes"),
    [
        ('Dense(4, activation="softmax")', "Dense(4)"),
        ("Dense(4, softmax)", "Dense(4)"),
        ('Dense(units: 4, activation: "softmax", name="a")', 'Dense(units: 4, name="a")'),
        ('Activation("softmax")', ""),
        ("Softmax()", ""),
    ],
)
def test_a_softmax_goes_and_nothing_else(layer: str, becomes: str) -> None:
    text = FILE.format(layer=layer, optimizer="Adam")
    assert changed("softmax_before_cross_entropy", text, 4) == [(layer, becomes)]


def test_a_clip_is_written_into_the_training() -> None:
    text = FILE.format(layer="Dense(4)", optimizer="Adam")
    assert changed("missing_gradient_clipping", text, None) == [
        ("train { epochs: 2 }", "train { gradient_clip: 4.9 epochs: 2 }")
    ]
    assert changed("missing_gradient_clipping", text.replace("epochs: 2", "gradient_clip: 1"), None) == []


def test_two_rates_without_a_line_are_left_alone() -> None:
    text = FILE.format(layer="Dense(4)", optimizer="Adam(learning_rate=0.5)")
    assert changed("learning_rate_too_high", text + text.replace("network N", "network M"), None) == []


def test_python_files_are_not_touched() -> None:
    finding = Finding("learning_rate_too_high", Severity.WARNING, "", source="train.py:3")
    assert list(neural_fixes(finding, OneFile("lr=0.5", "train.py"))) == []  # type: ignore[arg-type]
