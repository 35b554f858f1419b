"""neural compare: two runs side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuraldbg.errors import UsageError

if TYPE_CHECKING:
    from neuraldbg.trace import Trace


@click.command(short_help="Put two runs side by side.")
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option(
    "--max-step-time-regression",
    "most",
    metavar="SHARE",
    help="Exit with 6 where B's median step takes this much longer than A's (10%); with 7 where a time is not known.",
)
def command(a: str, b: str, as_json: bool, most: str | None) -> int:
    """Compare A and B: loss, ending, layers, and where they part. Each is a run directory or a session file."""
    return show_comparison(a, b, as_json=as_json, most=None if most is None else _share(most))


def _share(text: str) -> float:
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f"--max-step-time-regression is a share such as 10% or 0.1, not {text!r}")
    return number


def _judge_times(a: float | None, b: float | None, most: float) -> int:
    """0, or why not: 6 = slower than allowed, 7 = could not judge."""
    if not a or b is None:
        missing = "A" if not a else "B"
        click.echo(f"neural: exit code 7: the step time of {missing} is not known", err=True)
        return 7
    slower = b / a - 1
    if slower <= most:
        return 0
    click.echo(
        f"neural: exit code 6: a step of B takes {b * 1e3:.3g} ms, {slower:.1%} more than A's {a * 1e3:.3g} ms "
        f"(allowed: {most:.1%})",
        err=True,
    )
    return 6


def show_comparison(a: str, b: str, *, as_json: bool, most: float | None = None) -> int:
    from neuraldbg.analysis.compare import compare_sessions
    from neuraldbg.analysis.findings import strict
    from neuraldbg.surfaces.reports.session import dump

    (session_a, trace_a), (session_b, trace_b) = _load(a), _load(b)
    traces = (trace_a, trace_b) if trace_a is not None and trace_b is not None else None
    comparison = compare_sessions(session_a, session_b, traces=traces)
    if as_json:
        from dataclasses import asdict

        click.echo(dump(strict(asdict(comparison)), indent=1))
    else:
        from neuraldbg.surfaces.terminal.comparison import render_comparison
        from neuraldbg.surfaces.terminal.console import make_console

        render_comparison(comparison, make_console(sys.stdout))
    return 0 if most is None else _judge_times(comparison.a.step_time_s, comparison.b.step_time_s, most)


def _load(given: str) -> tuple[dict[str, Any], Trace | None]:
    from neuraldbg.surfaces.cli.runs import open_run
    from neuraldbg.surfaces.reports.session import session_object

    if Path(given).is_file():
        return _session_file(Path(given)), None
    _, trace = open_run(given)
    return session_object(trace), trace


def _session_file(path: Path) -> dict[str, Any]:
    from neuraldbg.surfaces.reports.session import SCHEMA

    try:
        session = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is neither a run directory nor a session file (it is not JSON)") from None
    kind = session.get("schema") if isinstance(session, dict) else None
    if kind != SCHEMA:
        raise UsageError(f"{path} is not a session of schema {SCHEMA}" + (f" but {kind}" if kind else ""))
    if not isinstance(session.get("run"), dict) or "verdict" not in session:
        raise UsageError(f"{path} is not a complete session: run and verdict are missing")
    return dict(session)
