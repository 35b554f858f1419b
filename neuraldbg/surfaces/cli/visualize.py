"""neural visualize: draw the networks of a .neural file."""

from __future__ import annotations

from pathlib import Path

import click

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.cli.dsl_files import FILE, NETWORK, shows_problems


@click.command(short_help="Draw a .neural file, with shapes and counts.")
@FILE
@NETWORK
@click.option("-f", "--format", "form", metavar="FORMAT", default="text", help="text, svg, dot or html.")
@click.option("-o", "--output", metavar="FILE", help="Write here.  [default: NAME.FORMAT beside FILE; text: stdout]")
@click.option("--cache/--no-cache", expose_value=False, help="Accepted for old scripts: nothing is cached.")
@click.option("--json", "as_json", is_flag=True, help="The networks as model dicts, as JSON on stdout.")
@shows_problems
def command(file: str, network: str | None, form: str, output: str | None, as_json: bool) -> int:
    """Draw FILE: a tree of its layers in the terminal, or a picture in a file."""
    from neuraldbg.dsl import parse_file
    from neuraldbg.dsl.check import check
    from neuraldbg.dsl.drawing import FORMATS, draw

    if form not in FORMATS:
        raise UsageError(f"--format {form}: there is {', '.join(FORMATS)}")
    program = parse_file(file)
    if as_json:
        import json

        click.echo(json.dumps(program.to_dicts(), indent=1, default=str))
        return 0
    graphs, _ = check(program, only=network)
    for graph in graphs:
        picture = draw(graph, form)
        if form == "text" and output is None:
            click.echo(picture)
            continue
        several = f"-{graph.network.name}" if len(graphs) > 1 else ""
        default = Path(file).with_suffix("").name
        path = Path(output) if output else Path(f"{default}.{form}")
        path = path.with_name(f"{path.stem}{several}{path.suffix}")
        write(path, picture + "\n")
        click.echo(str(path))
    return 0


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
