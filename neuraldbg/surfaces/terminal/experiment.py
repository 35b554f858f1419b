"""The outcome of an experiment as a table: what was tried, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

WORDS = {"verified": "cures it", "helps": "also helps", "no_effect": "no effect", "harm": "does harm"}
STYLES = {"verified": "bold green", "helps": "green", "no_effect": "dim", "harm": "red"}


def render_experiment(found: Mapping[str, Any], console: Console, *, run_dir: Path) -> None:
    console.print(_headline(found))
    control = found["control"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("change", "for", "loss", "outcome"):
        table.add_column(name, justify="right" if name == "loss" else "left", no_wrap=name == "loss")
    table.add_row("none (control)", "", _number(control["loss"]), _control(control))
    for arm in found["arms"]:
        outcome = Text(WORDS[arm["verdict"]], STYLES[arm["verdict"]])
        if arm.get("note"):
            outcome.append(f": {arm['note']}", "dim")
        table.add_row(name_of(arm), ", ".join(arm["causes"]), _number(arm["metric"]["arm"]), outcome)
    console.print(table)
    for note in [*_notes(control), *found["notes"]]:
        console.print(Text(note, "dim"))
    console.print(Text(f"Kept with the run: neural report {run_dir}", "dim"))


def name_of(arm: Mapping[str, Any]) -> str:
    return "the suggested patch" if arm.get("patch") else str(arm["intervention"])


def _headline(found: Mapping[str, Any]) -> Text:
    proved = [arm for arm in found["arms"] if arm["verdict"] == "verified"]
    if not proved:
        helped = [arm for arm in found["arms"] if arm["verdict"] == "helps"]
        if helped:
            return Text(f"Not proved: {helped[0]['intervention']} helps, but no cause was shown by it.", "bold")
        return Text("Not proved: nothing that was tried cures it.", "bold")
    best = proved[0]
    what = name_of(best)
    cause = " and ".join(best["causes"])
    told = f"Verified: {cause}. With {what} the loss ends at {_number(best['metric']['arm'])}"
    return Text(f"{told}, without it at {_number(best['metric']['control'])}.", "bold green")


def _control(control: Mapping[str, Any]) -> str:
    if control["exit_code"] not in (0, None):
        return f"fails with exit code {control['exit_code']}"
    return f"{control['updates']:,} updates, from {_number(control['start'])}"


def _notes(control: Mapping[str, Any]) -> list[str]:
    return ["Two runs of the script differ: all arms were given the same seed."] if control["seeded"] else []


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, int | float) else "not finite"
