"""neural whatif: try the cures of a run, one at a time, and say which works."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.cli.progress import progress

if TYPE_CHECKING:
    from neuraldbg.records import RunInfo

UPDATES = 300  # of an arm, where nobody says how many
SLOWER = 4.0  # times the duration of the run: an arm may take that long


@click.command(short_help="Try the cures of a run, one at a time.")
@click.argument("run", required=False)
@click.option("--change", "wanted", metavar="CHANGE", multiple=True, help="Try this ('lr x0.1', 'clip 1'); repeatable.")
@click.option("--steps", metavar="N", type=click.IntRange(min=1), help=f"Updates of each arm.  [default: {UPDATES}]")
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(min=1), help="Time of each arm.")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), default=1, help="Arms at the same time.  [default: 1]")
@click.option("--all", "everything", is_flag=True, help="Go on when a cause is proved.")
@click.option("--yes", is_flag=True, help="Do not ask before the script is run again.")
@click.option("--list", "listing", is_flag=True, help="Say which changes there are, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as JSON.")
def command(run: str | None, **options: Any) -> int:
    """Run the script of RUN again with one change at a time, made by the debugger and not in your code, and say which
    one cures it. It runs in a copy of its working directory, beside the same script unchanged. Without RUN: the newest.
    """
    if options["listing"]:
        return _list_changes(as_json=options["as_json"])
    from neuraldbg.analysis.summary import summarise
    from neuraldbg.replay.changes import parse
    from neuraldbg.replay.whatif import Asked, experiment
    from neuraldbg.surfaces.cli.runs import open_run

    for text in options["wanted"]:
        parse(text)
    run_dir, trace = open_run(run)
    summary = summarise(trace)
    trace.close()
    _check(summary.run, run_dir)
    if not options["wanted"] and not _worth_trying(summary.findings):
        return _nothing(summary, as_json=options["as_json"])
    _confirm(summary.run, ask=not options["yes"] and sys.stdin.isatty() and sys.stdout.isatty())
    asked = Asked(
        tuple(options["wanted"]),
        options["steps"] or min(summary.steps or UPDATES, UPDATES),
        options["timeout"] or max(SLOWER * (summary.run.duration_s or 0.0), 60.0),
        options["jobs"],
        options["everything"],
    )
    with progress(quiet=options["as_json"]) as tell:
        found = experiment(run_dir, summary.run, summary.findings, asked, lambda text: tell(f"trying {text}"))
    _keep(run_dir)
    if options["as_json"]:
        from neuraldbg.surfaces.reports.session import dump

        click.echo(dump(found.to_dict(), indent=1))
        return 0
    _show(found.to_dict(), run_dir)
    return 0


def _keep(run_dir: Path) -> None:
    """The findings as they look now, for the page and for reports."""
    from neuraldbg.analysis.findings import strict
    from neuraldbg.analysis.summary import summarise
    from neuraldbg.surfaces.web.judgement import of_summary
    from neuraldbg.trace import open_trace
    from neuraldbg.trace.findings import write_findings, write_verdict

    with open_trace(run_dir) as trace:
        judged = of_summary(summarise(trace, alive=False))
    if write_findings(run_dir, [strict(one) for one in judged.findings]):
        write_verdict(run_dir, judged.verdict)


def _list_changes(*, as_json: bool) -> int:
    from neuraldbg.replay.changes import changes

    if as_json:
        from neuraldbg.surfaces.reports.session import dump

        click.echo(dump({each.name: {"example": each.text(), "does": each.says} for each in changes().values()}))
        return 0
    for each in sorted(changes().values(), key=lambda one: one.name):
        click.echo(f"{each.text():18}{each.says}")
    return 0


def _check(run: RunInfo, run_dir: Path) -> None:
    if run_dir.is_file():
        raise UsageError(f"{run_dir} is a packed run; unpack it where its script is, then ask again")
    if not run.command or not run.script:
        raise UsageError(f"{run_dir.name} was not started by `neural debug`: there is no script to run again")
    if run.script.endswith((".neural", ".nr", ".rnr")):
        raise UsageError(f"{run_dir.name} is the run of a .neural file; whatif runs Python scripts")
    if run.cwd is None or not Path(run.cwd).is_dir():
        raise UsageError(f"the working directory of the run is gone: {run.cwd}")
    if run.command[0] != "-m" and not (Path(run.cwd) / run.script).is_file():
        raise UsageError(f"the script of the run is gone: {Path(run.cwd) / run.script}")


def _worth_trying(findings: Any) -> bool:
    from neuraldbg.replay.candidates import candidates

    return bool(candidates(findings))


def _nothing(summary: Any, *, as_json: bool) -> int:
    if as_json:
        click.echo('{"control": null, "arms": []}')
        return 0
    found = [each["kind"] for each in summary.findings if each["severity"] != "info"]
    why = f"no experiment is known for {found[0]}" if found else "nothing was found that a change could cure"
    click.echo(f"Nothing to try: {why}. A change of your own: neural whatif --change 'lr x0.1'  (--list names them)")
    return 0


def _confirm(run: RunInfo, *, ask: bool) -> None:
    """The script is run again: whoever is at the terminal sees what it wrote the first time, and agrees."""
    from neuraldbg.replay.scratch import written_since

    began = datetime.fromisoformat(run.started).timestamp()
    wrote = written_since(Path(run.cwd or "."), began, began + (run.duration_s or 0.0))
    changed = Path(run.cwd or ".") / (run.script or "")
    if changed.is_file() and changed.stat().st_mtime > began:
        click.echo(f"neuraldbg: {run.script} was changed after the run; it is tried as it is now", err=True)
    if not ask:
        return
    click.echo(f"This runs {' '.join(run.command)} several times, in a copy of {run.cwd}.")
    if wrote:
        click.echo(f"The first time it wrote: {', '.join(wrote[:8])}{' ...' if len(wrote) > 8 else ''}")
    click.echo("Files go to the copy, trackers are off; the network and other places on disk are not held.")
    click.confirm("Go on?", default=True, abort=True)


def _show(found: dict[str, Any], run_dir: Path) -> None:
    from neuraldbg.surfaces.terminal.console import make_console
    from neuraldbg.surfaces.terminal.experiment import render_experiment

    render_experiment(found, make_console(sys.stdout), run_dir=run_dir)
