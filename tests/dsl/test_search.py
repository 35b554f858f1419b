"""Searching what a file leaves open; Optuna itself is an extra, so these run where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuraldbg.dsl import parse
from neuraldbg.dsl.train.job import prepare
from neuraldbg.dsl.train.loop import Options
from neuraldbg.dsl.train.search import points, search_best

TEXT = """network Open {
    input: (6,)
    layers:
        Dense(HPO(range(4, 8, step=2)), activation=HPO(choice("relu", "tanh")))
        HPO(choice(Dropout(0.1), Dropout(0.2)))
        Output(3, "softmax")
    loss: "categorical_crossentropy"
    optimizer: Adam(learning_rate=HPO(log_range(1e-3, 1e-1)))
    train { epochs: 1 batch_size: [32, 64] search_method: "METHOD" }
}
"""


def test_a_grid_has_the_values_of_each_choice() -> None:
    choices = {choice.path.partition(" ")[0]: choice for choice in parse(TEXT).networks[0].choices}
    assert points(choices["Dense_1.units"]) == [4, 6, 8]
    assert points(choices["Dense_1.activation"]) == ["relu", "tanh"]
    assert points(choices["optimizer.learning_rate"])[0::4] == pytest.approx([1e-3, 1e-1])
    assert points(choices["train.batch_size"]) == [32, 64]


@pytest.mark.parametrize("method", ["bayesian", "random", "grid"])
def test_the_best_trial_is_trained(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    path = tmp_path / "open.neural"
    path.write_text(TEXT.replace("METHOD", method))
    best = search_best(prepare(str(path), Options(steps=2), quiet=True), 3)
    best.run()
    assert "best of 3 trials" in capsys.readouterr().out
    assert {choice.path for choice in best.graphs[0].network.choices} >= {"Dense_1.units", "train.batch_size"}
