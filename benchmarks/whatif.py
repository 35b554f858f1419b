"""What `neural whatif` proves: on faulty programs the right cause, and no other; on healthy ones nothing.

    python benchmarks/whatif.py [--only NAME...] [--json FILE]

Every program is debugged and experimented with in a folder of its own; whether that folder is the same afterwards is
checked as well.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from neuraldbg.replay.scratch import differences, look

HERE = Path(__file__).parent / "faults"
FAULTY = [
    "optim/learning_rate_too_high",
    "optim/learning_rate_too_low",
    "optim/momentum_too_high",
    "optim/weight_decay_too_high",
    "optim/missing_gradient_clipping",
    "loop/missing_zero_grad",
    "loop/missing_zero_grad_2",
    "loop/step_order_wrong",
    "loop/frozen_parameters",
    "loop/parameters_not_in_optimizer",
    "loss/softmax_before_cross_entropy",
    "loss/sigmoid_before_bce_with_logits",
    "arch/bad_init",
    "arch/saturating_activation",
    "data/unnormalised_input",
    "data/data_outlier_batch",
]
QUIET = ["healthy/causal_lm", "healthy/distillation", "healthy/actor_critic"]


def neural(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "neuraldbg", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def proved(name: str) -> dict[str, Any]:
    """What was verified of one program, and whether its folder was left alone."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copy(HERE / f"{name}.py", folder)
        neural(folder, "debug", "--headless", f"{Path(name).name}.py")
        before = look(folder)
        done = neural(folder, "whatif", "--json", "--steps", "200")
        after = look(folder)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            return {"error": done.stderr.strip().splitlines()[-1:], "verified": [], "touched": []}
        cures = [arm for arm in found["arms"] if arm["verdict"] == "verified"]
        return {
            "verified": sorted({cause for arm in cures for cause in arm["causes"]}),
            "by": [arm["intervention"] for arm in cures],
            "tried": [(arm["intervention"], arm["verdict"], arm["metric"]["arm"]) for arm in found["arms"]],
            "control": (found["control"] or {}).get("loss"),
            "touched": differences(before, after),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--json")
    options = parser.parse_args()
    names = options.only or [*FAULTY, *QUIET]
    results = {}
    for name in names:
        results[name] = found = proved(name)
        truths = json.loads((HERE / name).parent.joinpath("truth.json").read_text())
        truth: dict[str, Any] = next((one for one in truths if one["script"] == f"{Path(name).name}.py"), {})
        kinds = {truth.get("fault"), *truth.get("accept", ())}
        right = bool(set(found["verified"]) & kinds) if not name.startswith("healthy/") else not found["verified"]
        found["right"] = right
        found["wrong"] = sorted(set(found["verified"]) - kinds)  # verified, and not the fault
        print(f"{name:45} {'right' if right else 'WRONG':6} {found['verified']} by {found.get('by')}", flush=True)
    good = sum(found["right"] for found in results.values())
    faulty = [name for name in results if not name.startswith("healthy/")]
    told = sum(results[name]["right"] for name in faulty)
    wrong = {name: found["wrong"] for name, found in results.items() if found["wrong"]}
    print(f"faulty: the right cause verified on {told} of {len(faulty)}; wrongly verified: {wrong or 'none'}")
    print(f"{good} of {len(results)}; folders touched: {[name for name, found in results.items() if found['touched']]}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
