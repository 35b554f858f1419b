"""neural report: how a run went."""

from __future__ import annotations

import sys

import click


@click.command(short_help="Show how a run went.")
@click.argument("run", required=False)
@click.option("--format", "form", metavar="FORMAT", default="text", help="text or json.  [default: text]")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--gradients", is_flag=True, help="Faults of the gradients only (may be combined).")
@click.option("--dead-neurons", is_flag=True, help="Dead and saturated units only.")
@click.option("--anomalies", is_flag=True, help="NaN, Inf, explosions and instability only; list the unusual.")
def command(run: str | None, form: str, as_json: bool, **groups: bool) -> int:
    """Show how RUN went: verdict, layers, loss, notes. RUN is a run directory; without it, the newest one."""
    from neuraldbg.surfaces.cli.export import check_format
    from neuraldbg.surfaces.cli.runs import open_run
    from neuraldbg.surfaces.liveness import is_alive

    check_format(form, ("text", "json"), later=("html",))
    from neuraldbg.analysis.anomalies import survey
    from neuraldbg.analysis.summary import summarise

    run_dir, trace = open_run(run)
    alive = is_alive(trace.run)
    focus = [group for group, wanted in groups.items() if wanted] or None
    unusual = survey(trace, alive=alive)
    summary = summarise(trace, alive=alive, anomalies=unusual, focus=focus, ongoing=alive is True)
    if as_json or form == "json":
        from neuraldbg.surfaces.reports.session import dump, session_of

        click.echo(dump(session_of(summary), indent=1))
        return 0
    from neuraldbg.surfaces.terminal.console import make_console
    from neuraldbg.surfaces.terminal.report import render_report

    render_report(summary, make_console(sys.stdout), run_dir=run_dir)
    return 0
