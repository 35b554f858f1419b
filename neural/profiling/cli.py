"""`python -m neural.profiling`: commands on a report that `ProfilerManager.export_report` wrote."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import click

from neuraldbg.surfaces.terminal.figures import ending

from .utils import WIDTH, compare_profiling_sessions, format_profiling_report


def load(path: str) -> dict[str, Any]:
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise click.ClickException(f"{path} is not JSON ({error})") from None
    if not isinstance(report, dict) or "profiling_session" not in report:
        raise click.ClickException(
            f"{path} is no report of ProfilerManager.export_report: profiling_session is missing"
        )
    return report


@click.group()
def profiling() -> None:
    """Look at a report that ProfilerManager.export_report wrote."""


@profiling.command("show-report")
@click.argument("report_file")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show_report(report_file: str, form: str) -> None:
    """The whole report."""
    report = load(report_file)
    click.echo(json.dumps(report, indent=2) if form == "json" else format_profiling_report(report), nl=form == "json")


@profiling.command("bottlenecks")
@click.argument("report_file")
@click.option("--top-n", type=click.IntRange(min=1), default=10, show_default=True)
def bottlenecks(report_file: str, top_n: int) -> None:
    """The gravest layers."""
    found = (load(report_file).get("bottlenecks") or {}).get("bottlenecks") or []
    if not found:
        click.echo("No bottlenecks.")
    for one in found[:top_n]:
        click.echo(ending(one["layer"], WIDTH))
        kinds = ", ".join(one["bottleneck_type"])
        click.echo(f"  {kinds}: {one['overhead_percentage']:.1f} % above the threshold")


@profiling.command("memory-analysis")
@click.argument("report_file")
def memory_analysis(report_file: str) -> None:
    """Peak, growth and leaks."""
    report = load(report_file)
    summary = (report.get("memory_profiling") or {}).get("summary") or {}
    if not summary:
        raise click.ClickException("the report has no memory profile: enable_profiler('memory')")
    for name in ("baseline_memory_mb", "peak_memory_mb", "memory_growth", "peak_gpu_memory_mb"):
        if summary.get(name) is not None:
            click.echo(f"{name:<24}{summary[name]:>12.1f} MB")
    leaks = report.get("memory_leaks") or {}
    for leak in leaks.get("leaks") or ():
        around = ", ".join(leak["layers_involved"])
        told = f"leak of {leak['increase_mb']:.1f} MB, {leak['growth_rate_mb_per_step']:.3f} MB a step, around {around}"
        click.echo(textwrap.fill(told, WIDTH, subsequent_indent="  "))
    if leaks and not leaks["has_leaks"]:
        click.echo("No leaks.")
    if not leaks:
        click.echo("Leaks were not looked for: enable_profiler('leak').")


@profiling.command("compare")
@click.argument("first")
@click.argument("second")
def compare(first: str, second: str) -> None:
    """Two reports: positive is better in the second."""
    told = compare_profiling_sessions(load(first), load(second))["improvements"]
    if not told:
        raise click.ClickException("the reports have nothing in common that could be compared")
    click.echo(f"{'':<14}{'first':>14}{'second':>14}{'better by':>14}")
    for name, each in told.items():
        unit = "ms" if name == "total_time" else "MB"
        before, after, better = each.values()
        share = "-" if better is None else f"{better:.1f} %"
        click.echo(f"{name:<14}{before:>11.2f} {unit}{after:>11.2f} {unit}{share:>14}")


@profiling.command("gpu-stats")
@click.argument("report_file")
def gpu_stats(report_file: str) -> None:
    """What the GPUs did."""
    told = load(report_file).get("gpu_utilization") or {}
    if not told.get("measurements"):
        click.echo("No GPU was measured.")
        return
    for name, value in told.items():
        text = f"{value:.1f}" if isinstance(value, float) else ", ".join(value) if isinstance(value, list) else value
        click.echo(f"{name:<36}{text}")


@profiling.command("summary")
@click.argument("report_file")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="A file to write it to.")
def summary(report_file: str, output: str | None) -> None:
    """The report as text, on the terminal or in a file."""
    text = format_profiling_report(load(report_file))
    if output:
        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"cannot write {output}: {error.strerror}") from None
        click.echo(output)
    else:
        click.echo(text, nl=False)


if __name__ == "__main__":
    profiling()
