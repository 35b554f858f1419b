"""neural report: how a run went."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuraldbg.errors import UsageError

if TYPE_CHECKING:
    from neuraldbg.trace import Trace


@click.command(short_help="Show how a run went.")
@click.argument("run", required=False)
@click.option("--format", "form", metavar="FORMAT", help="text, json or html.  [default: text]")
@click.option("-o", "--output", metavar="FILE", help="Where to; - is stdout.  [default: stdout; html: <run>.html]")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--gradients", is_flag=True, help="Faults of the gradients only (may be combined).")
@click.option("--dead-neurons", is_flag=True, help="Dead and saturated units only.")
@click.option("--anomalies", is_flag=True, help="NaN, Inf, explosions and instability only; list the unusual.")
def command(run: str | None, form: str | None, output: str | None, as_json: bool, **groups: bool) -> int:
    """Show how RUN went: verdict, layers, loss, notes. RUN is a run directory; without it, the newest one.

    html: the page itself as one file to send, with the run in it; it opens without a server and loads nothing.
    """
    from neuraldbg.surfaces.cli.export import check_format
    from neuraldbg.surfaces.cli.runs import open_run

    form = form or ("json" if as_json else "text")
    check_format(form, ("text", "json", "html"), later=())
    if as_json and form != "json":
        raise UsageError(f"--json and --format {form} ask for two things; leave one out")
    run_dir, trace = open_run(run)
    if form == "html":
        return _page(run_dir, trace, output, [name for name, wanted in groups.items() if wanted])
    text = _text(run_dir, trace, form, groups, to_file=output not in (None, "-"))
    if text is not None:
        from neuraldbg.surfaces.reports.session import write_atomic

        write_atomic(Path(str(output)), [text.encode()])
    return 0


def _page(run_dir: Path, trace: Trace, output: str | None, groups: list[str]) -> int:
    from neuraldbg.surfaces.reports import files
    from neuraldbg.surfaces.terminal.figures import size

    if groups:
        raise UsageError(f"--{groups[0].replace('_', '-')} is for text and json: a page shows every group")
    if output == "-":
        for part in files.parts(trace, run_dir, "html"):
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return 0
    path = Path(output or f"{run_dir.resolve().name.removesuffix('.zip')}.html")
    click.echo(f"{path} ({size(files.write(trace, run_dir, 'html', path))})")
    return 0


def _text(run_dir: Path, trace: Trace, form: str, groups: dict[str, bool], *, to_file: bool) -> str | None:
    """Prints the report, or gives its text where a file is to hold it."""
    from neuraldbg.analysis.anomalies import survey
    from neuraldbg.analysis.summary import summarise
    from neuraldbg.surfaces.liveness import goes_on

    alive = goes_on(trace)
    focus = [group for group, wanted in groups.items() if wanted] or None
    unusual = survey(trace, alive=alive)
    summary = summarise(trace, alive=alive, anomalies=unusual, focus=focus, ongoing=alive is True)
    if form == "json":
        from neuraldbg.surfaces.reports.session import dump, session_of

        session = f"{dump(session_of(summary), indent=1)}\n"
        if not to_file:
            click.echo(session, nl=False)
        return session if to_file else None
    if to_file:
        from neuraldbg.surfaces.reports.text import text_report

        return text_report(summary, run_dir=run_dir)
    from neuraldbg.surfaces.terminal.console import make_console
    from neuraldbg.surfaces.terminal.report import render_report

    render_report(summary, make_console(sys.stdout), run_dir=run_dir)
    return None
