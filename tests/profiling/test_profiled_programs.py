"""Programs as people write them, profiled: the same results bit for bit, and phases that make up their steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from programs.truth import TRUTHS, Truth

pytest.importorskip("torch")
NAMES = (
    "gpt_lm rnn_lm dcgan hogwild lbfgs hf_style transformer_encoder amp_scaler checkpointing raw_tensors compiled "
    "inplace_relu double_backward weight_sharing no_optimizer thread_trains"
).split()
TRIES = 3  # a machine that gives the processor to others between two phases is no fault of theirs
RACY = ("hogwild",)  # several threads train: there is no order of phases to speak of


CHOSEN = [truth for truth in TRUTHS if truth.name.partition(" ")[0] in NAMES]


@pytest.mark.parametrize("truth", CHOSEN, ids=[truth.name for truth in CHOSEN])
def test_results_are_identical_and_the_phases_make_up_the_steps(
    truth: Truth, torch_server: Any, tmp_path: Path
) -> None:
    plain = torch_server.python(str(truth.path), *truth.args, cwd=tmp_path, timeout=200)
    for number in range(TRIES):
        out = str(tmp_path / f"run{number}")
        options = ("--memory", "--budget", "full", "--json", "--out", out)
        profiled = torch_server.neural("profile", *options, str(truth.path), *truth.args, cwd=tmp_path, timeout=250)
        assert (plain.code, profiled.code) == (0, 0), profiled.stderr
        assert profiled.stdout.startswith(plain.stdout)
        assert "stopped watching" not in profiled.stderr
        told = json.loads(profiled.stdout[len(plain.stdout) :])
        assert all(one["self_ms"] >= 0 for one in told["layers"])
        if _made_up(truth, told["step_ms"]):
            return
    pytest.fail(f"the phases are {told['step_ms']['covered']} of the steps")


def _made_up(truth: Truth, step_ms: dict[str, Any]) -> bool:
    ordinary = truth.optimizers and truth.name.partition(" ")[0] not in RACY  # by hand: nobody knows when it ended
    if not ordinary or step_ms["covered"] is None or step_ms["mean"] <= 1.0:
        return True
    return bool(step_ms["covered"] == pytest.approx(1.0, abs=0.1))
