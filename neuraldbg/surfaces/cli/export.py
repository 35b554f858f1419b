"""neural export: a run as one file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from neuraldbg.errors import UsageError, nearest

FORMATS = ("json", "zip", "csv", "html", "mermaid", "chrome", "speedscope")
ENDING = {"mermaid": "mmd", "chrome": "trace.json", "speedscope": "speedscope.json"}
LATER = ("tensorboard", "repro", "parquet")


def check_format(form: str, available: Sequence[str], *, later: Sequence[str] = ()) -> None:
    if form in available:
        return
    listed = ", ".join(available)
    if form in later:
        raise UsageError(f"--format {form} is not in this version; available: {listed}")
    near = nearest(form, available, 1)
    raise UsageError(f"no format {form!r}; " + (f"did you mean {near[0]!r}?" if near else f"available: {listed}"))


@click.command(short_help="Write a run as one file: JSON, CSV, ZIP, HTML, a trace.")
@click.argument("run", required=False)
@click.option("--format", "form", metavar="FORMAT", default="json", help=f"{', '.join(FORMATS)}.  [default: json]")
@click.option("-o", "--output", metavar="FILE", help="Where to; - is stdout.  [default: <run>.<format>]")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written where.")
def command(run: str | None, form: str, output: str | None, as_json: bool) -> int:
    """Write RUN as one file.

    json: the portable session, which neural compare reads. csv: every recorded statistic and scalar, one row each.
    zip: the run directory itself. html: the page with the run in it. mermaid: what caused what, as a graph that GitHub
    and GitLab draw.
    """
    check_format(form, FORMATS, later=LATER)
    from neuraldbg.surfaces.cli.runs import open_run
    from neuraldbg.surfaces.reports import files

    run_dir, trace = open_run(run)
    if output == "-":
        for part in files.parts(trace, run_dir, form):
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return 0
    path = Path(output) if output else Path(f"{run_dir.resolve().name}.{ENDING.get(form, form)}")
    written = files.write(trace, run_dir, form, path)
    if as_json:
        import json

        click.echo(json.dumps({"file": str(path), "format": form, "bytes": written}))
    else:
        from neuraldbg.surfaces.terminal.figures import size

        click.echo(f"{path} ({size(written)})")
    return 0
