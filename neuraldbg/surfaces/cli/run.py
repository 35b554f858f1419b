"""neural run: train a .neural file without the debugger."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from neuraldbg.surfaces.cli.dsl_files import BACKEND, FILE, NETWORK, shows_problems


@click.command(short_help="Train a .neural file, without the debugger.")
@FILE
@BACKEND
@NETWORK
@click.option("--dataset", metavar="PATH", help="File or folder, or MNIST, CIFAR10, ...  [default: synthetic data]")
@click.option("--device", metavar="NAME", help="auto, cpu, gpu, cuda:0.  [default: as the file says]")
@click.option("--epochs", metavar="N", type=click.IntRange(1), help="Instead of what the file says.")
@click.option("--steps", metavar="N", type=click.IntRange(1), help="At most this many batches an epoch.")
@click.option("--batch-size", "batch", metavar="N", type=click.IntRange(1), help="Instead of what the file says.")
@click.option("--seed", metavar="N", type=int, default=0, help="Of weights, data and shuffling.  [default: 0]")
@click.option("--hpo", is_flag=True, help="Search what the file leaves open (needs Optuna), then train the best.")
@click.option("--trials", metavar="N", type=click.IntRange(1), help="Of the search.")
@click.option("--json", "as_json", is_flag=True, help="What every epoch told, as JSON on stdout.")
@click.pass_context
@shows_problems
def command(ctx: click.Context, /, file: str, backend: str | None, as_json: bool, **options: Any) -> int:
    """Train the networks of FILE: loss, optimizer, schedule, batches and epochs as it says. Without --dataset the
    data is made up, and said to be."""
    from neuraldbg.dsl.train.job import prepare
    from neuraldbg.dsl.train.loop import Options

    search, trials = options.pop("hpo"), options.pop("trials")
    animated = bool((ctx.obj or {}).get("animations", True)) and sys.stderr.isatty()
    job = prepare(file, Options(**options, bar=animated), backend=backend, searched=search)
    if search:
        from neuraldbg.dsl.train.search import search_best

        job = search_best(job, trials)
    if not as_json:
        job.run()
        return 0
    from contextlib import redirect_stdout

    with redirect_stdout(sys.stderr):
        job.run()
    click.echo(json.dumps({done.network: done.history for done in job.done}, indent=1))
    return 0
