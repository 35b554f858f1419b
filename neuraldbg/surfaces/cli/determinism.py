"""neural determinism: run a script twice and name the first operation that differs."""

from __future__ import annotations

from typing import Any

import click

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.cli.debug import DebugCommand
from neuraldbg.surfaces.cli.progress import progress

DIFFERS = 6


@click.command(
    cls=DebugCommand,
    short_help="Run a script twice and name what differs.",
    epilog="Our options stand before TARGET; everything after it belongs to the script.",
)
@click.option("-m", "module", is_flag=True, help="TARGET is a module, as in python -m package.module.")
@click.option("--steps", metavar="N", type=click.IntRange(min=1), default=5, help="Updates of each run.  [default: 5]")
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(min=1), default=600.0, help="Time of each run.")
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
@click.argument("target", required=False, type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(target: str | None, args: tuple[str, ...], **options: Any) -> int:
    """Run TARGET twice in copies of the working directory, compare every operation bit for bit, and name the first one
    whose result is another: its line, and what makes it the same. The exit code is 6 when there is one.
    """
    if target is None:
        raise UsageError("determinism needs a target: neural determinism train.py")
    from neuraldbg.replay.determinism import run_twice
    from neuraldbg.script import load_module, load_script

    (load_module if options["module"] else load_script)(target, args)  # a mistyped name is told at once
    with progress(quiet=options["as_json"]) as tell:
        found = run_twice(
            target, args, module=options["module"], steps=options["steps"], seconds=options["timeout"], tell=tell
        )
    if options["as_json"]:
        from neuraldbg.surfaces.reports.session import dump

        click.echo(dump(found.to_dict(), indent=1))
    else:
        _show(found)
    return DIFFERS if found.difference is not None else 0


def _show(found: Any) -> None:
    if found.difference is None:
        click.echo(f"The same: {found.operations:,} operations over {found.steps} updates agree bit for bit.")
        return
    one = found.difference
    where = f" at {one.source}" if one.source else ""
    click.echo(f"Different: {one.op}{where}, after {one.step} updates and {one.number:,} operations that agree.")
    click.echo(f"Next       {one.cure}.")
