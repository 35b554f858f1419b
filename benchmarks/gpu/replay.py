"""Whether steps on CUDA are made again bit for bit: outputs by default, gradients with --deterministic.

python benchmarks/gpu/replay.py [--device cpu --small] [--json FILE]

A GPT in bf16 and a CNN, both with dropout, are trained and recorded by processes of their own, unwatched, by default
and with repeatable kernels; then steps are made again from disk by `neuraldbg.replay`, in further processes, and held
against what the script itself kept. While the script trains, any wait for the device is an error. States are taken
every 20 updates here, so that outputs far from the start can be looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]
UPDATES = 60
STATES_EVERY = 20
ASKED = (20, 33, 57)  # the first is a step that has a state
WHAT = ("output", "input", "weight", "gradient", "weight_gradient")
LAYER = {"gpt": "blocks.0.mlp.0", "cnn": "body.0"}
ARMS = ("bare", "default", "deterministic")
RECORD_BYTES = 4 * 10**9


def record(folder: str, arm: str, words: list[str]) -> None:
    """In a process of its own: the script, recorded as `neural debug --record full` does."""
    from neuraldbg.capture.attachment import Attachment, Plan
    from neuraldbg.capture.torch.repeatable import fix_workspace
    from neuraldbg.script import load_script
    from neuraldbg.trace.rundir import create_run, new_run_info

    os.chdir(folder)
    deterministic = arm == "deterministic"
    if deterministic:
        fix_workspace()
    info = new_run_info(("replayed.py", *words), script="replayed.py", budget="1%", deterministic=deterministic)
    run = create_run(info, out=Path(arm))
    plan = Plan(str(run), 0.01, record_bytes=RECORD_BYTES, deterministic=deterministic)
    program = load_script("replayed.py", tuple(words))
    _often()
    attachment = Attachment(plan)
    attachment.start()
    outcome = program.run()
    attachment.close(exit_code=outcome.exit_code, error=outcome.error)
    if outcome.exit_code or attachment.recording is None or attachment.recording.tape.failed:
        tape = None if attachment.recording is None else attachment.recording.tape.failed
        sys.exit(f"not recorded: {outcome.error or tape}")


def _often() -> None:
    from neuraldbg.capture.torch.recording import disk

    disk.EVERY = disk.VARYING_EVERY = STATES_EVERY  # type: ignore[misc]
    disk.DiskTape.__init__.__kwdefaults__["share"] = float("inf")


def trained(folder: Path, name: str, arm: str, chosen: argparse.Namespace) -> None:
    updates = UPDATES
    words = [name, chosen.device, str(updates), str(folder / f"{arm}.pt"), *(["small"] if chosen.small else [])]
    command = [sys.executable, str(folder / "replayed.py"), *words]
    if arm != "bare":
        command = [sys.executable, __file__, "--record", str(folder), arm, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}, {arm}: {done.stdout[-500:]}{done.stderr[-2000:]}")


def replayed(folder: Path, name: str, arm: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Of every step that is asked for: what came back bit for bit, and what the replay says of itself."""
    import torch

    from neuraldbg.capture.torch.recording import tensorfile
    from neuraldbg.replay.asking import Wanted, made_again
    from neuraldbg.replay.recorded import Recorded
    from neuraldbg.replay.recreate import TENSORS
    from neuraldbg.trace.rundir import load_run_info

    run = folder / arm
    kept = _kept(folder, arm)
    recorded = Recorded(run)
    layer = (recorded.names["models"][0]["site"], LAYER[name])
    found: dict[str, Any] = {"states": [step for _, step, _ in recorded.states], "step_ms": kept["step_ms"]}
    for step in asked(chosen):
        with made_again(run, load_run_info(run)[0], Wanted(step, [layer]), seconds=300) as (place, answer):
            tensors = tensorfile.read(place / TENSORS)[0]
            same = {
                what: torch.equal(tensors[f"{layer[0]}/{layer[1]}#{what}"], kept["truth"][f"{what} {step}"])
                for what in WHAT
            }
        told = {key: answer[key] for key in ("proof", "identical", "checked", "from_step", "varies")}
        found[str(step)] = {"same": same, **told}
    return found


def _kept(folder: Path, arm: str) -> Any:
    import torch

    return torch.load(folder / f"{arm}.pt", map_location="cpu")


def asked(chosen: argparse.Namespace) -> tuple[int, ...]:
    return ASKED[::2] if chosen.small else ASKED


def judged(arms: dict[str, Any], chosen: argparse.Namespace) -> dict[str, bool]:
    """What was promised."""
    first, exact = arms["default"][str(ASKED[0])], arms["deterministic"]
    forward = ("output", "input", "weight")
    return {
        "forward exact by default": all(first["same"][what] for what in forward) and first["identical"] is True,
        "gradients marked by default": first["varies"] is (chosen.device == "cuda"),
        "all exact with deterministic": all(all(exact[str(step)]["same"].values()) for step in asked(chosen)),
        "proved with deterministic": all(exact[str(step)]["identical"] is True for step in asked(chosen)),
    }


def measured(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        shutil.copy(HERE / "replayed.py", folder)
        arms: dict[str, Any] = {}
        for arm in ARMS:
            trained(folder, name, arm, chosen)
            bare = arm == "bare"
            arms[arm] = {"step_ms": _kept(folder, "bare")["step_ms"]} if bare else replayed(folder, name, arm, chosen)
    return {**arms, "holds": judged(arms, chosen)}


def main() -> None:
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2], sys.argv[3], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=tuple(LAYER), default=list(LAYER))
    parser.add_argument("--json", metavar="FILE")
    chosen = parser.parse_args()
    import torch

    from neuraldbg.errors import NeuralDbgError

    machine = torch.cuda.get_device_name() if chosen.device == "cuda" else "host"
    found: dict[str, Any] = {"device": machine, "torch": torch.__version__}
    for name in chosen.only:
        try:
            found[name] = measured(name, chosen)
        except (RuntimeError, NeuralDbgError) as error:
            found[name] = {"error": f"{type(error).__name__}: {error}", "holds": {"ran": False}}
    found["ok"] = all(all(found[name]["holds"].values()) for name in chosen.only)
    text = json.dumps(found, indent=1)
    print(text, flush=True)
    if chosen.json:
        Path(chosen.json).write_text(text)
    sys.exit(0 if found["ok"] else 1)


if __name__ == "__main__":
    main()
