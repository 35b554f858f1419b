"""neural compile: a .neural file as code for PyTorch, Keras or ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.cli.dsl_files import BACKEND, FILE, NETWORK, each_with_path, shows_problems


@click.command(short_help="Write a .neural file as PyTorch or Keras code.")
@FILE
@BACKEND
@NETWORK
@click.option("-o", "--output", metavar="FILE", help="Write here.  [default: FILE with .py]")
@click.option("--hpo", is_flag=True, help="Search what the file leaves open first (needs Optuna); write the best.")
@click.option("--dataset", metavar="PATH", help="What a search trains on.  [default: synthetic data]")
@click.option("--auto-flatten-output", is_flag=True, help="Accepted for old scripts: an Output on an image always is.")
@click.option("--dry-run", is_flag=True, help="Print the code; write nothing.")
@shows_problems
def command(file: str, backend: str | None, output: str | None, dry_run: bool, **options: Any) -> int:
    """Write FILE as a script that stands by itself: the model, its training, and a way to start it."""
    from neuraldbg.dsl.build.backends import backend_of
    from neuraldbg.dsl.build.scripts import script_for
    from neuraldbg.dsl.train.job import prepare
    from neuraldbg.dsl.train.loop import Options
    from neuraldbg.surfaces.cli.visualize import write

    wanted = backend_of(backend)
    given = Options(network=options["network"], dataset=options["dataset"])
    job = prepare(file, given, backend=wanted, written=True, searched=options["hpo"])
    if options["hpo"]:
        from neuraldbg.dsl.train.search import search_best

        job = search_best(job, None)
    target = Path(output) if output else Path(file).with_suffix(".py")
    if target.resolve() == Path(file).resolve():
        raise UsageError(f"{target} is the file itself; name another with -o")
    for graph, path in each_with_path(job.graphs, target):
        text = script_for(wanted, graph, file)
        if dry_run:
            click.echo(text, nl=False)
        else:
            write(path, text)
            click.echo(str(path))
    return 0
