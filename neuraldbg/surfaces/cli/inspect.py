"""neural inspect: the layers of a run, or one of them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from neuraldbg.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from neuraldbg.trace import Trace

KINDS = ("activation", "gradient", "parameter", "update", "input", "target")


@click.command(short_help="List the layers of a run, or show one.")
@click.argument("run", required=False)
@click.argument("layer", required=False)
@click.option("--step", type=int, metavar="N", help="The last recorded step up to this one.  [default: the last]")
@click.option("--kind", metavar="KIND", help=f"Only this: {', '.join(KINDS)}.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(run: str | None, layer: str | None, step: int | None, kind: str | None, as_json: bool) -> int:
    """List the layers of RUN with their other names, or show the numbers of LAYER over time.

    A RUN that is no directory is taken for a LAYER of the newest run: neural inspect fc1.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownName("kind", kind, KINDS, listed_by="`neural inspect --help`")
    if step is not None and step < 0:
        raise UsageError(f"--step {step}: steps count from 0")
    run_dir, trace, layer = _open(run, layer)
    if layer is None:
        return _list(trace, run_dir, as_json=as_json)
    return _show(trace, layer, step=step, kind=kind, as_json=as_json)


def _open(run: str | None, layer: str | None) -> tuple[Path, Trace, str | None]:
    from neuraldbg.surfaces.cli.runs import open_run

    try:
        return *open_run(run), layer
    except UsageError:
        if run is None or layer is not None or "/" in run:
            raise
        try:
            run_dir, trace = open_run(None)
        except UsageError:
            run_dir = None
        if run_dir is None:
            raise
        try:
            trace.site(run)
        except UnknownName as error:
            raise UsageError(f"{run!r} is neither a run nor a layer of {run_dir}: {error}") from error
        return run_dir, trace, run


def _list(trace: Trace, run_dir: Path, *, as_json: bool) -> int:
    from neuraldbg.analysis.layers import summarise_layers

    layers = summarise_layers(trace)
    if as_json:
        listed = [
            {"path": x.path, "aliases": list(x.aliases), "type": x.type, "params": x.params, "shape": x.shape}
            for x in layers
        ]
        click.echo(json.dumps({"run": trace.run.id, "layers": listed}))
        return 0
    from neuraldbg.surfaces.terminal.console import make_console
    from neuraldbg.surfaces.terminal.inspection import render_list

    render_list(layers, make_console(sys.stdout), run_dir=run_dir)
    return 0


def _show(trace: Trace, name: str, *, step: int | None, kind: str | None, as_json: bool) -> int:
    from neuraldbg.analysis.layer_views import view_layer

    found = view_layer(trace, name, step=step, kind=kind)
    if as_json:
        from neuraldbg.analysis.findings import strict
        from neuraldbg.surfaces.reports.session import dump, stats_object

        plain: dict[str, Any] = {
            "layer": found.path,
            "aliases": list(found.aliases),
            "type": found.type,
            "params": found.params,
            "source": found.source,
            "kinds": [
                {
                    "tensor": view.tensor,
                    "kind": view.kind,
                    "step": view.step,
                    "stats": stats_object(view.stats),
                    "first_bad_step": view.first_bad_step,
                    "history": {"steps": view.steps.tolist(), "l2": view.l2.tolist()},
                }
                for view in found.views
            ],
        }
        click.echo(dump(strict(plain)))
        return 0
    from neuraldbg.surfaces.terminal.console import make_console
    from neuraldbg.surfaces.terminal.inspection import render_layer

    render_layer(found, make_console(sys.stdout))
    return 0
