"""What a trace weighs: bytes per layer, step and rank, as recorded and as Parquet, of a real training.

    python benchmarks/sizing.py [--steps 300] [--budgets full 1%]

Prints one JSON line per budget. `layer_steps` counts pairs of a layer and a step that left statistics.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from neuraldbg.store.exporting import export_run
from neuraldbg.store.manifest import open_dataset
from neuraldbg.store.places import open_place
from neuraldbg.trace import open_trace
from neuraldbg.trace.tables import TABLES

SCRIPT = """
import sys
import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 2)
model = torch.nn.Sequential(torch.nn.Embedding(100, 16), encoder, torch.nn.Linear(16, 100))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(int(sys.argv[1])):
    tokens = torch.randint(0, 100, (4, 8))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def measured(folder: Path, steps: int, budget: str) -> dict[str, Any]:
    (folder / "train.py").write_text(SCRIPT)
    run = folder / f"run-{budget.strip('%')}"
    words = ["debug", "--headless", "--budget", budget, "--out", str(run), "train.py", str(steps)]
    code = "from neuraldbg.surfaces.cli import main; main()"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code, *words], cwd=folder, env=env, check=True, capture_output=True)
    export_run(run, open_place(folder / f"{run.name}.parquet"))
    data_set = open_dataset(open_place(folder / f"{run.name}.parquet"))
    parquet = {table: sum(part.size_bytes for part in parts) for table, parts in data_set.manifests[0].tables.items()}
    with open_trace(run) as trace:
        rows = {name: len(trace.table(name, ("step",))["step"]) for name in TABLES}
        stats = trace.table("stats", ("step", "site"))
        pairs = len(np.unique(stats["step"] * 1_000_000 + stats["site"]))
        layers = len(np.unique(stats["site"]))
    recorded = {name: rows[name] * TABLES[name].itemsize for name in TABLES}
    facts = sum(path.stat().st_size for path in (run / "rank-00000").glob("facts-*.ndt"))
    rollups = sum(path.stat().st_size for path in (run / "rank-00000").glob("rollup-*.ndt"))
    return {
        "budget": budget,
        "steps": steps,
        "sites": layers,
        "layer_steps": pairs,
        "rows": rows,
        "recorded_bytes": {**recorded, "facts": facts, "rollups": rollups},
        "parquet_bytes": parquet,
        "bytes_per_layer_step": round(sum(recorded.values()) / pairs, 1),
        "parquet_bytes_per_layer_step": round(sum(v for k, v in parquet.items() if k != "facts") / pairs, 1),
        "bytes_per_step": round(sum(recorded.values()) / steps, 1),
        "parquet_bytes_per_step": round(sum(v for k, v in parquet.items() if k != "facts") / steps, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--budgets", nargs="+", default=["full", "1%"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neuraldbg-sizing-") as folder:
        for budget in given.budgets:
            print(json.dumps(measured(Path(folder), given.steps, budget)), flush=True)


if __name__ == "__main__":
    main()
