"""neural export: a run as one file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from neuraldbg.errors import UsageError, nearest

FORMATS = ("json", "zip", "csv", "html", "mermaid", "chrome", "speedscope", "tensorboard", "repro", "parquet", "otel")
ENDING = {"mermaid": "mmd", "chrome": "trace.json", "speedscope": "speedscope.json", "tensorboard": "tfevents"}
REPRO_SECONDS = 600.0
REST_SECONDS = 120.0  # of a store that does not answer


def check_format(form: str, available: Sequence[str], *, later: Sequence[str] = ()) -> None:
    if form in available:
        return
    listed = ", ".join(available)
    if form in later:
        raise UsageError(f"--format {form} is not in this version; available: {listed}")
    near = nearest(form, available, 1)
    raise UsageError(f"no format {form!r}; " + (f"did you mean {near[0]!r}?" if near else f"available: {listed}"))


@click.command(short_help="Write a run as one file, or as Parquet.")
@click.argument("run", required=False)
@click.argument("to", required=False, metavar="[URL]")
@click.option("--format", "form", metavar="FORMAT", default="json", help=f"{', '.join(FORMATS)}.  [default: json]")
@click.option("-o", "--output", metavar="FILE", help="Where to; - is stdout.  [default: <run>.<format>]")
@click.option("--step", metavar="N", type=click.IntRange(min=0), help="Of repro: the update, counted from 0.")
@click.option("--yes", is_flag=True, help="Of repro: do not ask before the script is run again.")
@click.option("--follow", is_flag=True, help="Of otel: go on until the run is over.")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written where.")
def command(run: str | None, form: str, output: str | None, **options: Any) -> int:
    """Write RUN as one file; as parquet, as a folder of them or to an object store (URL: s3://bucket/prefix, ...).

    json: the portable session, which neural compare reads. csv: every recorded statistic and scalar, one row each.
    zip: the run directory itself. html: the page with the run in it. mermaid: what caused what, as a graph that GitHub
    and GitLab draw. tensorboard: an event file, for tensorboard --logdir (which reads only files with tfevents in
    their name). repro: a folder with one step of a recorded run (--step) and a script that makes it again.
    parquet: one folder per rank, rows sorted by layer, kind and step, for DuckDB, Polars, Ray and Spark; neural import
    makes a run directory of it again. otel: series and findings to an OpenTelemetry collector.
    """
    check_format(form, FORMATS)
    as_json = options["as_json"]
    if options["follow"] and form != "otel":
        raise UsageError("--follow is for --format otel")
    if form in ELSEWHERE:
        return ELSEWHERE[form](run, options["to"] or output, options)
    if options["to"] is not None:
        raise UsageError(f"a URL ({options['to']}) is for --format otel and parquet; a file is named with -o")
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


def _parquet(run: str | None, to: str | None, options: dict[str, Any]) -> int:
    from neuraldbg.store.counters import read_counters
    from neuraldbg.store.exporting import export_run
    from neuraldbg.store.places import open_place
    from neuraldbg.surfaces.cli.runs import open_run
    from neuraldbg.surfaces.terminal.figures import size

    run_dir, trace = open_run(run)
    with trace:
        place = open_place(to or f"{run_dir.resolve().name.removesuffix('.zip')}.parquet")
        begun = read_counters(trace.path) or {}
        if to is not None and begun.get("to") == place.shown and not begun.get("complete"):
            return _ship_the_rest(trace.path, to, as_json=options["as_json"])
        written = export_run(trace.path, place)
    if options["as_json"]:
        import json
        from dataclasses import asdict

        click.echo(json.dumps({"to": place.shown, "format": "parquet", **asdict(written)}))
        return 0
    ranks = f"{written.ranks} rank{'s' if written.ranks != 1 else ''}"
    click.echo(f"{place.shown}: {written.rows:,} rows of {ranks} in {written.files} files ({size(written.bytes)})")
    if written.left_out:
        click.echo(f"neuraldbg: left where it is: {', '.join(written.left_out)}", err=True)
    return 0


def _ship_the_rest(run_dir: Path, url: str, *, as_json: bool) -> int:
    """Of a run that could not be shipped whole while it went on."""
    from neuraldbg.errors import StoreError
    from neuraldbg.store.shipping import Shipper

    shipper = Shipper(run_dir, url)
    if not shipper.finish(seconds=REST_SECONDS):
        raise StoreError(f"{shipper.counters.waiting_parts} files still wait in {run_dir}: {shipper.counters.error}")
    told = shipper.counters
    if as_json:
        import json
        from dataclasses import asdict

        click.echo(json.dumps({"format": "parquet", **asdict(told)}))
    else:
        click.echo(f"{told.to}: complete, {told.parts} files ({told.bytes:,} bytes)")
    return 0


def _otel(run: str | None, to: str | None, options: dict[str, Any]) -> int:
    from neuraldbg.surfaces.cli.runs import open_run
    from neuraldbg.surfaces.liveness import is_alive
    from neuraldbg.surfaces.reports.otel import endpoint_of, send

    url = endpoint_of(to)
    _, trace = open_run(run)
    with trace:
        sent = send(trace, url, until=lambda: not (options["follow"] and is_alive(trace.run)))
    if options["as_json"]:
        import json
        from dataclasses import asdict

        click.echo(json.dumps({"to": url, "format": "otel", **asdict(sent)}))
    else:
        click.echo(f"{url}: {sent.points:,} points and {sent.findings} findings in {sent.requests} requests")
    return 0


ELSEWHERE = {"parquet": _parquet, "otel": _otel}


def _repro(run: str | None, output: str | None, step: int | None, *, yes: bool, as_json: bool) -> int:
    from neuraldbg.replay.asking import Wanted, made_again
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
    confirm(info, run_dir, times="up to its first pass", yes=yes)
    with made_again(run_dir, info, Wanted(step, bundle=True), seconds=REPRO_SECONDS) as (folder, answer):
        try:
            finish(folder, target, Path(info.cwd or "."), list(recorded.environment["files"]))
        except OSError as error:
            raise UsageError(f"cannot write {target}: {error.strerror or error}") from None
    if as_json:
        import json

        click.echo(json.dumps({"file": str(target), "format": "repro", "step": step, "proof": answer["proof"]}))
    else:
        click.echo(f"{target}: step {step}, {answer['proof']}. Make it again: python {target / 'repro.py'}")
    return 0
