"""neural validate: check a .neural file; nothing is built."""

from __future__ import annotations

import json

import click

from neuraldbg.errors import DslError
from neuraldbg.surfaces.cli.dsl_files import FILE, NETWORK, shows_problems


@click.command(short_help="Check a .neural file: syntax, values, shapes.")
@FILE
@NETWORK
@click.option("--json", "as_json", is_flag=True, help="Problems and networks as JSON on stdout.")
@shows_problems
def command(file: str, network: str | None, as_json: bool) -> int:
    """Check FILE: syntax, values and shapes. Exit code 0 = it can be built, 2 = syntax or values, 3 = shapes, 5 = no
    such file. Warnings are shown and do not fail."""
    from neuraldbg.dsl import parse_file
    from neuraldbg.dsl.check import check
    from neuraldbg.dsl.graph import written
    from neuraldbg.dsl.problems import render_all

    try:
        program = parse_file(file)
        graphs, problems = check(program, only=network)
    except DslError as error:
        if as_json:
            told = [each.as_dict() for each in error.problems]
            click.echo(json.dumps({"file": file, "valid": False, "problems": told, "networks": []}, indent=1))
        raise
    if as_json:
        networks = [
            {"name": g.network.name, "output": list(g.shape), "parameters": g.parameters, "flops": g.flops}
            for g in graphs
        ]
        told = [each.as_dict() for each in problems]
        click.echo(json.dumps({"file": file, "valid": True, "problems": told, "networks": networks}, indent=1))
        return 0
    if problems:
        click.echo(render_all(problems, program.source), err=True)
    for graph in graphs:
        shapes = ", ".join(written(each.shape) for each in graph.inputs)
        click.echo(f"{graph.network.name}: {shapes} -> {written(graph.shape)}, {graph.parameters:,} parameters")
    click.echo(f"{file}: valid")
    return 0
