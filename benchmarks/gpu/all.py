"""Everything that needs a CUDA machine, in one command and under ten minutes: what watching GPT-2 costs, eager and
compiled, that losses stay the same, memory, no synchronisation, the speed of the kernel, and the time of each layer.

python benchmarks/gpu/all.py [--dry] [--only SECTION ...]     writes $OUT/gpu.json and $OUT/gpu.txt

Each section is a process of its own with a limit: one that crashes or hangs costs only itself. `--dry` runs all of it
with tiny sizes on the host, which tests the script and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

LIMIT_S = 560
SECTIONS = {  # seconds each may take
    "eager": 170,
    "padded": 120,
    "recorded": 140,
    "kernels": 40,
    "compiled": 150,
    "exact": 100,
    "layers": 30,
    "inexact": 90,
}
EAGER = ("eager", "padded", "recorded")


def section(name: str, *, dry: bool) -> None:
    import eager
    import sections
    import torch
    from programs import DRY, GPT2, Results

    if dry:
        torch.set_num_threads(1)
    getattr(eager if name in EAGER else sections, name)(DRY if dry else GPT2, Results(name))


def run_all(names: list[str], *, dry: bool) -> None:
    out = Path(os.environ.get("OUT") or tempfile.mkdtemp(prefix="gpu-"))
    out.mkdir(parents=True, exist_ok=True)
    began, text, found = time.monotonic(), [], {}
    for name in names:
        left = LIMIT_S - (time.monotonic() - began)
        limit = 1000.0 if dry else min(SECTIONS[name], left)
        print(name, flush=True)
        start = time.monotonic()
        command = [sys.executable, __file__, "--section", name, *(["--dry"] if dry else [])]
        env = {**os.environ, "OUT": str(out), "PYTHONUNBUFFERED": "1"}
        ended, said = _ran(command, env, limit) if limit > 10 else ("no time left", "")
        print(said[-6000:], flush=True)
        text.append(f"== {name}: {ended}, {time.monotonic() - start:.0f} s\n{said}")
        kept = out / f"gpu-{name}.json"
        numbers = json.loads(kept.read_text()) if kept.exists() else {}
        kept.unlink(missing_ok=True)
        found[name] = {"ended": ended, "seconds": round(time.monotonic() - start, 1), **numbers}
        (out / "gpu.json").write_text(json.dumps(found, indent=1))
        (out / "gpu.txt").write_text("\n".join(text))
    print(f"written to {out}")


def _ran(command: list[str], env: dict[str, str], limit: float) -> tuple[str, str]:
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(command, env=env, stdout=said, stderr=subprocess.STDOUT) as child:
            try:
                ended = f"exit {child.wait(limit)}"
            except subprocess.TimeoutExpired:
                child.kill()
                ended = f"cut off after {limit:.0f} s"
        said.seek(0)
        return ended, said.read().decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--only", nargs="+", choices=SECTIONS)
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.section:
        section(chosen.section, dry=chosen.dry)
    else:
        run_all(chosen.only or list(SECTIONS), dry=chosen.dry)


if __name__ == "__main__":
    main()
