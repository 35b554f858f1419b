"""neural profile: where the time and the memory of a training go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.cli.debug import DebugCommand
from neuraldbg.surfaces.cli.dsl_files import training_options
from neuraldbg.surfaces.cli.target import DSL_SUFFIXES

DISAGREE = 6
TIME_BUDGET, MEMORY_BUDGET = "1.5%", "4%"
FORMATS = ("table", "json", "csv", "chrome", "speedscope", "html")
CALLS = ("chrome", "speedscope")
ENDING = {"csv": "csv", "chrome": "trace.json", "speedscope": "speedscope.json", "html": "html"}


@click.command(
    cls=DebugCommand,
    short_help="Say where the time and memory of a training go.",
    epilog="Our options stand before TARGET; everything after it belongs to the script.",
)
@click.option("-m", "module", is_flag=True, help="TARGET is a module, as in python -m package.module.")
@click.option("--memory", is_flag=True, help="Also measure what layers allocate and keep, and look for leaks.")
@click.option("--latency", is_flag=True, help="Times only: the default.")
@click.option("--format", "form", metavar="FORMAT", help=f"{', '.join(FORMATS)}.  [default: table]")
@click.option("-o", "--output", metavar="FILE", help="Where to write it; - is stdout.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--top", metavar="N", type=click.IntRange(min=1), default=10, help="Layers in the table.  [default: 10]")
@click.option("--step", metavar="N", type=click.IntRange(min=0), help="Of chrome and speedscope: this step only.")
@click.option("--out", metavar="DIR", help="Directory of the run.  [default: neuraldbg_runs/<time>-<script>]")
@click.option(
    "--budget",
    metavar="SHARE",
    help=f"Time it may add: {TIME_BUDGET}, full (every step).  [default: {TIME_BUDGET}; {MEMORY_BUDGET} with --memory]",
)
@click.option("--layers", metavar="PATTERN", multiple=True, help="Of a run that is made: these layers only.")
@training_options
@click.option(
    "--compare-backends",
    "backends",
    metavar="NAMES",
    help="Of a .neural file: the same weights on each (pytorch,onnx,tensorflow,jax), outputs and times compared.",
)
@click.argument("target", required=False, type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(target: str | None, args: tuple[str, ...], **options: Any) -> int:
    """Run TARGET and say what its layers and phases cost, or show RUN, one that was made before.

    TARGET is a script (train.py), after -m a module, or a network (model.neural). RUN is a run directory; without it,
    the newest one is shown. A run of `neural debug` has the times of the steps it measured in full.
    """
    form = _form(options)
    if options["step"] is not None and form not in CALLS:
        raise UsageError(f"--step is for --format {' and '.join(CALLS)}")
    if options["backends"]:
        return _compare(target, form, options)
    if target is None or (not options["module"] and _is_run(target)):
        if args:
            raise UsageError(f"{args[0]!r} stands behind a run; our options stand before it")
        return _show(target, form, options)
    return _profile(target, args, form, options)


def _form(options: dict[str, Any]) -> str:
    from neuraldbg.surfaces.cli.export import check_format

    form = "json" if options["as_json"] else options["form"] or "table"
    check_format(form, FORMATS)
    return str(form)


def _is_run(target: str) -> bool:
    from neuraldbg.surfaces.cli.runs import RUNS

    return target.endswith(".zip") or any((path / "run.json").is_file() for path in (Path(target), RUNS / target))


def _show(target: str | None, form: str, options: dict[str, Any]) -> int:
    from neuraldbg.analysis.profile_report import profile_of
    from neuraldbg.surfaces.cli.runs import open_run

    run_dir, trace = open_run(target)
    if options["memory"] and not trace.facts("layer_memory"):
        click.echo("neuraldbg: this run was made without --memory: what layers allocate is not in it", err=True)
    if form == "table" and not options["output"]:
        from neuraldbg.surfaces.terminal.console import make_console
        from neuraldbg.surfaces.terminal.profile_table import render_profile

        render_profile(profile_of(trace), make_console(sys.stdout), top=options["top"])
        return 0
    from neuraldbg.surfaces.reports.profile_files import text_of, write

    default = f"{run_dir.resolve().name}.{ENDING[form]}" if form in ENDING else "-"
    path = options["output"] or default
    text = text_of(trace, form, step=options["step"], top=options["top"])
    if path == "-":
        click.echo(text, nl=not text.endswith("\n"))
    else:
        click.echo(write(text, Path(path)))
    return 0


def _compare(target: str | None, form: str, options: dict[str, Any]) -> int:
    from neuraldbg.dsl.train.compare_backends import compare_backends
    from neuraldbg.surfaces.cli.dsl_files import shows_problems
    from neuraldbg.surfaces.cli.progress import progress

    if target is None or not target.endswith(DSL_SUFFIXES):
        raise UsageError("--compare-backends is for .neural files: neural profile model.neural --compare-backends ...")
    names = tuple(name.strip() for name in options["backends"].split(",") if name.strip())
    if len(set(names)) < 2:
        raise UsageError("--compare-backends needs two backends or more, separated by commas: pytorch,onnx")
    with progress(quiet=form == "json") as tell:
        tell(f"running {target} on {', '.join(names)}")
        found = shows_problems(compare_backends)(target, names, network=options["network"])
    if form == "json":
        from neuraldbg.surfaces.reports.session import dump

        click.echo(dump({"networks": [one.as_dict() for one in found]}, indent=1))
    else:
        from neuraldbg.surfaces.terminal.backends_table import render_backends
        from neuraldbg.surfaces.terminal.console import make_console

        render_backends([one.as_dict() for one in found], make_console(sys.stdout))
    return 0 if all(one.agree for one in found) else DISAGREE


def _profile(target: str, args: tuple[str, ...], form: str, options: dict[str, Any]) -> int:
    from neuraldbg.launch import Request, die_as_it_did, fresh_process, profile
    from neuraldbg.surfaces.cli.debug import model_of

    own_path = list(sys.path)
    request = Request(
        target=target,
        args=args,
        module=options["module"],
        out=None if options["out"] is None else Path(options["out"]),
        budget=options["budget"] or (MEMORY_BUDGET if options["memory"] else TIME_BUDGET),
        layers=options["layers"],
        model=model_of(target, options),
    )
    given = {"--format": form, "--top": str(options["top"]), "-o": options["output"], "--step": options["step"]}
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    outcome, run_dir = profile(request, memory=options["memory"])
    code = fresh_process(["profile", *words, str(run_dir)], own_path)
    return die_as_it_did(outcome) or code
