"""neural visualize: draw the networks of a .neural file."""

from __future__ import annotations

from pathlib import Path

import click

from neuraldbg.errors import UsageError, nearest
from neuraldbg.surfaces.cli.dsl_files import FILE, NETWORK, each_with_path, shows_problems


@click.command(short_help="Draw a .neural file, with shapes and counts.")
@FILE
@NETWORK
@click.option("-f", "--format", "form", metavar="FORMAT", default="text", help="text, svg, png, dot or html.")
@click.option("-o", "--output", metavar="FILE", help="Write here.  [default: FILE with .FORMAT, here; text: stdout]")
@click.option("--cache/--no-cache", expose_value=False, help="Accepted for old scripts: nothing is cached.")
@click.option("--json", "as_json", is_flag=True, help="The networks as model dicts, as JSON on stdout.")
@shows_problems
def command(file: str, network: str | None, form: str, output: str | None, as_json: bool) -> int:
    """Draw FILE: a tree of its layers in the terminal, or a picture in a file."""
    from neuraldbg.dsl import parse_file
    from neuraldbg.dsl.check import check
    from neuraldbg.dsl.drawing import FORMATS, draw
    from neuraldbg.dsl.picture import as_png

    if form not in FORMATS:
        near = nearest(form, FORMATS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(FORMATS)}"
        raise UsageError(f"--format {form}: {hint}")
    program = parse_file(file)
    if as_json:
        import json

        click.echo(json.dumps(program.to_dicts(), indent=1, default=str))
        return 0
    graphs, _ = check(program, only=network)
    target = Path(output) if output else Path(f"{Path(file).stem}.{form}")
    for graph, path in each_with_path(graphs, target):
        if form == "text" and output is None:
            click.echo(draw(graph, form))
            continue
        write(path, as_png(graph) if form == "png" else draw(graph, form) + "\n")
        click.echo(str(path))
    return 0


def write(path: Path, content: str | bytes) -> None:
    try:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
