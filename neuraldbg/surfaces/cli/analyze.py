"""neural analyze: many ranks and many runs at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import click

from neuraldbg.errors import UsageError, nearest

ENGINES = ("local", "duckdb", "ray", "spark")
TITLES = {
    "stragglers": "Who is slow: ranks by how often they were the last of their step",
    "desync": "Parameters whose bits differ between ranks",
    "divergence": "Where runs part from the first",
    "anomalies": "What is unusual: not finite, or a norm a thousand times its layer's median",
    "findings": "What was found over these runs",
}


@click.command(short_help="Analyse many ranks and runs, here or on an engine.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--engine", metavar="NAME", default="local", help="local, duckdb, ray or spark.  [default: local]")
@click.option("--only", metavar="WHAT", multiple=True, help=f"{', '.join(TITLES)} (repeatable).  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(runs: tuple[str, ...], engine: str, only: tuple[str, ...], as_json: bool) -> int:
    """Analyse RUNs together: run directories, Parquet data sets, or URLs of such (s3://bucket/run).

    Every engine gives the same answer; ray and spark take the cluster that their own settings name, and both read
    Parquet: a run directory is written as that first.
    """
    wanted = [_known(name, TITLES, "analysis") for name in only] or list(TITLES)
    _known(engine, ENGINES, "engine")
    found = analysed(runs, wanted, engine)
    if as_json:
        click.echo(json.dumps({"engine": engine, "runs": found[0], **found[1]}, indent=1))
        return 0
    from neuraldbg.surfaces.terminal.console import make_console
    from neuraldbg.surfaces.terminal.fleet_tables import render

    render({TITLES[name]: rows for name, rows in found[1].items()}, make_console(sys.stdout))
    return 0


def _known(name: str, known: Sequence[str] | Mapping[str, str], what: str) -> str:
    if name not in known:
        near = nearest(name, known, 1)
        raise UsageError(
            f"no {what} {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}")
        )
    return name


def analysed(
    runs: Sequence[str], wanted: Sequence[str], engine: str
) -> tuple[list[str], dict[str, list[dict[str, Any]]]]:
    from neuraldbg.fleet.analyses import JOBS
    from neuraldbg.fleet.engines import answer
    from neuraldbg.fleet.sources import open_sources
    from neuraldbg.fleet.sweep import findings_over

    with ExitStack() as kept:
        sources = open_sources(list(_places(runs)), kept)
        answers = {
            name: findings_over(sources) if name == "findings" else answer(JOBS[name], sources, engine)
            for name in wanted
        }
    return [source.name for source in sources], answers


def _places(runs: Sequence[str]) -> Iterator[str]:
    """What is given, or the run of that name in ./neuraldbg_runs; a data set is read where it lies."""
    from pathlib import Path

    from neuraldbg.surfaces.cli.runs import RUNS, find_run

    for given in runs:
        if "://" in given:
            yield given
        elif any((path / "dataset.json").is_file() for path in (Path(given), RUNS / given)):
            yield str(next(path for path in (Path(given), RUNS / given) if (path / "dataset.json").is_file()))
        else:
            yield str(find_run(given))
