"""neural export: a run as one file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from neuraldbg.errors import UsageError, nearest

FORMATS = ("json", "zip", "csv", "html", "mermaid", "chrome", "speedscope", "repro")
ENDING = {"mermaid": "mmd", "chrome": "trace.json", "speedscope": "speedscope.json"}
REPRO_SECONDS = 600.0
LATER = ("tensorboard", "parquet")


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
@click.option("--step", metavar="N", type=click.IntRange(min=0), help="Of repro: the update, counted from 0.")
@click.option("--yes", is_flag=True, help="Of repro: do not ask before the script is run again.")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written where.")
def command(run: str | None, form: str, output: str | None, as_json: bool, **options: Any) -> int:
    """Write RUN as one file.

    json: the portable session, which neural compare reads. csv: every recorded statistic and scalar, one row each.
    zip: the run directory itself. html: the page with the run in it. mermaid: what caused what, as a graph that GitHub
    and GitLab draw. repro: a folder with one step of a recorded run (--step) and a script that makes it again.
    """
    check_format(form, FORMATS, later=LATER)
    if form == "repro":
        return _repro(run, output, options["step"], yes=options["yes"], as_json=as_json)
    if options["step"] is not None:
        raise UsageError("--step is for --format repro")
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


def _repro(run: str | None, output: str | None, step: int | None, *, yes: bool, as_json: bool) -> int:
    from neuraldbg.replay.asking import made_again
    from neuraldbg.replay.bundle import finish
    from neuraldbg.replay.recorded import Recorded
    from neuraldbg.surfaces.cli.rerunning import check, confirm
    from neuraldbg.surfaces.cli.runs import open_run

    if step is None:
        raise UsageError("--format repro needs a --step")
    run_dir, trace = open_run(run)
    info = trace.run
    trace.close()
    target = Path(output) if output else Path(f"{run_dir.resolve().name}-step{step}")
    if target.exists() or output == "-":
        raise UsageError(f"{target} is not a new folder; choose another with -o")
    check(info, run_dir)
    recorded = Recorded(run_dir)
    recorded.state_for(step)
    confirm(info, times="up to its first pass", yes=yes)
    with made_again(run_dir, info, step, [], seconds=REPRO_SECONDS, bundle=True) as (folder, answer):
        finish(folder, target, Path(info.cwd or "."), list(recorded.environment["files"]))
    if as_json:
        import json

        click.echo(json.dumps({"file": str(target), "format": "repro", "step": step, "proof": answer["proof"]}))
    else:
        click.echo(f"{target}: step {step}, {answer['proof']}. Make it again: python {target / 'repro.py'}")
    return 0
