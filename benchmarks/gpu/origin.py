"""On a CUDA machine: where a NaN was born is found when asked for, and watching for it changes nothing.

python benchmarks/gpu/origin.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "capture")]

from nan_programs import PROGRAMS, Program  # noqa: E402
from watching import facts, watching  # noqa: E402

from neuraldbg.errors import StoppedOnNaN  # noqa: E402


def on_device(program: Program) -> Program:
    text = program.text.replace("\nopt =", "\nmodel = model.cuda()\nopt =")
    text = text.replace(
        "torch.randn(32, 8), torch.randn(32, 1)", "torch.randn(32, 8).cuda(), torch.randn(32, 1).cuda()"
    )
    return Program(text, program.where, program.op, program.layer, program.update, program.cause)


def search(program: Program, **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    folder, scope = Path(tempfile.mkdtemp()), dict[str, Any]()
    with watching(folder, **{"budget": 0.01, "strict": True, **options}):
        try:
            program.run(folder, scope)
        except StoppedOnNaN:
            pass
    return facts(folder, "origin"), scope


def main() -> None:
    torch.use_deterministic_algorithms(False)
    wrong = 0
    for name, host in PROGRAMS.items():
        program = on_device(host)
        line = None if program.line is None else f"train.py:{program.line}"
        for how in ({}, {"stop_on_nan": True}, {"arm_step": program.update}):
            found, _ = search(program, **how)
            first = found[0] if found else {}
            said = (first.get("where"), first.get("op"), first.get("layer"), first.get("source"), first.get("update"))
            exact = first.get("op") == program.op and (line is None or first.get("source") == line)
            wrong += bool(how) and not exact
            took = f"{first.get('seconds', 0):.3f} s"
            print(f"{name:38} {next(iter(how), 'default'):12} {first.get('method')} {said} {took}")
        plain = program.run(Path(tempfile.mkdtemp()))["model"].state_dict()
        _, watched = search(program)
        same = all(
            torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            for a, b in zip(plain.values(), watched["model"].state_dict().values(), strict=True)
        )
        print(f"{name:38} bit-identical {same}")
        wrong += not same
    print("wrong:", wrong)


if __name__ == "__main__":
    main()
