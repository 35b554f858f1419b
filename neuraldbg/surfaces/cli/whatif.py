"""neural whatif: try the cures of a run, one at a time, and say which works."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuraldbg.errors import UnknownName
from neuraldbg.surfaces.cli.progress import progress
from neuraldbg.surfaces.cli.rerunning import check, confirm, tell_if_changed, wrote_before

if TYPE_CHECKING:
    from neuraldbg.records import RunInfo

UPDATES = 300  # of an arm, where nobody says how many
SLOWER = 4.0  # times the duration of the run: an arm may take that long
LEAST_S = 120.0  # to start alone may take half a minute where much else is going on


@click.command(short_help="Try the cures of a run, one at a time.")
@click.argument("run", required=False)
@click.option("--change", "wanted", metavar="CHANGE", multiple=True, help="Try this ('lr x0.1', 'clip 1'); repeatable.")
@click.option("--cause", "causes", metavar="KIND", multiple=True, help="Only the cures of this finding; repeatable.")
@click.option("--steps", metavar="N", type=click.IntRange(min=1), help=f"Updates of each arm.  [default: {UPDATES}]")
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(min=1), help="Time of each arm.")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), default=1, help="Arms at the same time.  [default: 1]")
@click.option("--all", "everything", is_flag=True, help="Go on when a cause is proved.")
@click.option("--yes", is_flag=True, help="Do not ask before the script is run again.")
@click.option("--dry-run", "planning", is_flag=True, help="Say what would be run and tried, and run nothing.")
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
    check(summary.run, run_dir)
    findings = _of_causes(summary.findings, options["causes"])
    if options["planning"]:
        return _plan(summary.run, run_dir, findings, options)
    if not options["wanted"] and not _worth_trying(findings):
        return _nothing(summary, as_json=options["as_json"])
    tell_if_changed(summary.run)
    confirm(summary.run, run_dir, times="several times", yes=options["yes"])
    asked = Asked(
        tuple(options["wanted"]),
        options["steps"] or min(summary.steps or UPDATES, UPDATES),
        options["timeout"] or max(SLOWER * (summary.run.duration_s or 0.0), LEAST_S),
        options["jobs"],
        options["everything"],
    )
    with progress(quiet=options["as_json"]) as tell:
        found = experiment(run_dir, summary.run, findings, asked, lambda text: tell(f"trying {text}"))
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


def _of_causes(findings: Sequence[Mapping[str, Any]], causes: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    known = [each["kind"] for each in findings]
    for kind in causes:
        if kind not in known:
            raise UnknownName("finding", kind, known, listed_by="`neural report`")
    return [each for each in findings if not causes or each["kind"] in causes]


def _plan(run: RunInfo, run_dir: Path, findings: Sequence[Mapping[str, Any]], options: dict[str, Any]) -> int:
    from neuraldbg.replay.candidates import Candidate, candidates

    groups = [[Candidate((), (text,)) for text in options["wanted"]]] if options["wanted"] else candidates(findings)
    tried = [{"change": one.name, "causes": list(one.causes)} for group in groups for one in group]
    wrote = wrote_before(run, run_dir)
    told = {"command": list(run.command), "cwd": run.cwd, "wrote": wrote, "tries": tried}
    if options["as_json"]:
        from neuraldbg.surfaces.reports.session import dump

        click.echo(dump(told, indent=1))
        return 0
    click.echo(f"Runs       {' '.join(run.command)}, twice as it is, in copies of {run.cwd}")
    click.echo(f"It wrote   {', '.join(wrote) or 'nothing there'} (the first time; now that goes to the copies)")
    for one in tried:
        click.echo(f"Tries      {one['change']}{' for ' + ', '.join(one['causes']) if one['causes'] else ''}")
    return 0


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


def _show(found: dict[str, Any], run_dir: Path) -> None:
    from neuraldbg.surfaces.terminal.console import make_console
    from neuraldbg.surfaces.terminal.experiment import render_experiment

    render_experiment(found, make_console(sys.stdout), run_dir=run_dir)
