"""neural fmt: write .neural files in one style."""

from __future__ import annotations

from pathlib import Path

import click

from neuraldbg.surfaces.cli.dsl_files import shows_problems


@click.command(short_help="Write .neural files in one style.")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 where a file would change.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Print the result instead of writing it.")
@shows_problems
def command(files: tuple[str, ...], check: bool, to_stdout: bool) -> int:
    """Write FILES in one style, in place. Meaning and comments stay as they are."""
    from neuraldbg.dsl.formatting import format_text
    from neuraldbg.dsl.program import read_text
    from neuraldbg.surfaces.cli.visualize import write

    changed = 0
    for file in files:
        text = read_text(file)
        result = format_text(text, file)
        if to_stdout:
            click.echo(result, nl=False)
        elif result != text:
            changed += 1
            click.echo(f"{file}: would change" if check else f"{file}: written", err=True)
            if not check:
                write(Path(file), result)
    return 1 if check and changed else 0
