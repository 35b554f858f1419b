"""neural explain: the page of one diagnosis."""

from __future__ import annotations

import json
import sys

import click


@click.command(short_help="Explain a diagnosis, or list them all.")
@click.argument("id", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(id: str | None, as_json: bool) -> int:
    """Explain what a diagnosis such as `missing_zero_grad` means: what it finds, why it matters, what decides it and
    what usually cures it. Without ID: the list of all."""
    from neuraldbg.analysis.catalogue import catalogue, named

    if id is None:
        return _list(as_json)
    entry = named(id)
    if as_json:
        known = {
            "id": entry.id,
            "sort": entry.sort,
            "group": entry.group,
            "auto": entry.auto,
            "title": entry.title,
            "sections": entry.sections,
            "leads_to": sorted(entry.explains & set(catalogue())),
        }
        click.echo(json.dumps(known, indent=1))
        return 0
    from neuraldbg.surfaces.reports.detector_pages import page_text
    from neuraldbg.surfaces.terminal.console import make_console

    console = make_console(sys.stdout)
    console.print(page_text(entry, console.width), markup=False, highlight=False)
    return 0


def _list(as_json: bool) -> int:
    from neuraldbg.analysis.catalogue import catalogue
    from neuraldbg.surfaces.terminal.console import make_console

    entries = catalogue()
    if as_json:
        listed = [{"id": one.id, "sort": one.sort, "group": one.group, "title": one.title} for one in entries.values()]
        click.echo(json.dumps(listed, indent=1))
        return 0
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in sorted(entries.values(), key=lambda one: (one.sort, one.group, one.id)):
        table.add_row(one.id, one.title)
    make_console(sys.stdout).print(table)
    return 0
