"""Answers about many runs as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def render(answers: Mapping[str, Sequence[Mapping[str, Any]]], console: Console) -> None:
    for title, rows in answers.items():
        console.print(Text(title, style="bold"))
        if not rows:
            console.print("  nothing\n")
            continue
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        names = list(dict.fromkeys(name for row in rows for name in row))
        for name in names:
            table.add_column(name.replace("_", " "))
        for row in rows:
            table.add_row(*(_shown(row.get(name)) for name in names))
        console.print(table)
        console.print()


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value[:4])) + (f" and {len(value) - 4} more" if len(value) > 4 else "")
    return str(value)
