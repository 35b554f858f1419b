"""A training function under Ray Train with the debugger in it: every worker records, and ships when it is done.

    python examples/ray_train.py s3://bucket/runs/ray

Without Ray the function runs once, in this process.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from neuraldbg import NeuralDbg


def train(config: dict[str, Any]) -> None:
    from neuraldbg.store.exporting import export_run
    from neuraldbg.store.places import open_place

    torch.manual_seed(config["worker"])
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with NeuralDbg(model, out=run):
            for _ in range(config["steps"]):
                x = torch.randn(64, 8)
                loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        export_run(run, open_place(f"{config['to']}/{config['worker']}"))


def on_ray(to: str, workers: int = 2) -> None:
    import ray.train
    from ray.train.torch import TorchTrainer

    def one(config: dict[str, Any]) -> None:
        train({**config, "worker": ray.train.get_context().get_world_rank()})

    TorchTrainer(
        one,
        train_loop_config={"to": to, "steps": 200},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
    ).fit()


if __name__ == "__main__":
    to = sys.argv[1] if len(sys.argv) > 1 else "ray-runs"
    try:
        import ray  # noqa: F401
    except ImportError:
        train({"to": to, "steps": 200, "worker": 0})
    else:
        on_ray(to)
    print(f"look at it: neural report {to}/0")
