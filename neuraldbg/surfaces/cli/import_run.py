"""neural import: a Parquet data set as a run directory again."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("import", short_help="Make a run directory of a Parquet data set.")
@click.argument("source", metavar="SOURCE")
@click.option("-o", "--output", metavar="DIR", help="Where to.  [default: neuraldbg_runs/<run>]")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written where.")
def command(source: str, output: str | None, as_json: bool) -> int:
    """Make a run directory of SOURCE, what neural export --format parquet wrote: a folder or a URL.

    Every row, fact and file comes back bit for bit; neural report, view, inspect and compare also read SOURCE itself.
    """
    from neuraldbg.store.importing import import_run
    from neuraldbg.store.manifest import open_dataset
    from neuraldbg.store.places import open_place
    from neuraldbg.surfaces.cli.runs import RUNS

    found = open_dataset(open_place(source))
    out = import_run(found, Path(output) if output else RUNS / found.folder_name)
    rows = sum(part.rows for manifest in found.manifests.values() for _, part in manifest.parts())
    if as_json:
        import json

        told = {"run": str(out), "rows": rows, "ranks": len(found.manifests), "missing_ranks": list(found.missing)}
        click.echo(json.dumps(told))
        return 0
    click.echo(f"{out}: {rows:,} rows")
    if found.missing:
        click.echo(f"neuraldbg: ranks that have put nothing there yet: {', '.join(map(str, found.missing))}", err=True)
    return 0
