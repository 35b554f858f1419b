"""What is wrong, why, and what to do next: the head of every report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neuraldbg.surfaces.terminal.figures import figure

if TYPE_CHECKING:
    from rich.console import Console

    from neuraldbg.analysis.summary import RunSummary

LABEL_WIDTH = 11
MOST_LINKS = 5
MOST_OTHERS = 3
MOST_CURES = 3
MOST_UNCHECKED = 3
MOST_TRIED = 6
STATE_STYLE = {"healthy": "bold green", "warning": "bold yellow", "critical": "bold red", "undecided": "bold cyan"}
_SEVERITY_STYLE = {"critical": "bold red", "warning": "bold yellow", "info": "dim"}
LOUD = ("warning", "critical")


def labelled(console: Console, label: str, text: str, *, style: str = "", label_style: str = "bold") -> None:
    """A label in the first column, its text beside it, wrapped under itself."""
    from rich.text import Text

    lines = textwrap.wrap(text, console.width - LABEL_WIDTH, break_on_hyphens=False) or [""]
    for at, line in enumerate(lines):
        whole = Text()
        whole.append("" if at else label, style=label_style)
        whole.append(" " * (LABEL_WIDTH - len(whole)))
        whole.append(line, style=style)
        console.print(whole, no_wrap=True, crop=False)


def render_diagnosis(summary: RunSummary, console: Console) -> None:
    """Verdict, Why, Next."""
    state = summary.verdict.state
    labelled(console, "Verdict", f"{state}: {summary.verdict.headline}.", style="bold", label_style=STATE_STYLE[state])
    loud = [one for one in summary.findings if one["severity"] in LOUD]
    if loud:
        _why(console, loud[0])
        _next(console, loud[0])
        _others(console, loud)
    else:
        _unchecked(console, summary)
    _tried(console, summary.tried)
    hints = [one for one in summary.findings if one["severity"] not in LOUD]
    for at, one in enumerate(hints[: 0 if loud else MOST_OTHERS]):
        labelled(console, "" if at else "Seen", f"{one['kind']}: {_with_place(one)}")


def _why(console: Console, one: Mapping[str, Any]) -> None:
    measured = evidence_text(one["evidence"])
    label = "Why"
    if measured:
        labelled(console, label, measured)
        label = ""
    if one["inference"]:
        labelled(console, label, one["inference"])
    for link in one["chain"][:MOST_LINKS]:
        labelled(console, "", f"-> {_with_place(link)}", style="dim")
    rest = len(one["chain"]) - MOST_LINKS
    if rest > 0:
        labelled(console, "", f"-> {rest} more consequence{'s' if rest > 1 else ''}", style="dim")


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """`zero grad calls 0; stale share 1.00`"""
    return "; ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in evidence.items())


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else "-"
    if isinstance(value, int):
        return f"{value:,}"
    return figure(value) if isinstance(value, float) else str(value)


def _next(console: Console, one: Mapping[str, Any]) -> None:
    cures = one["suggestions"][:MOST_CURES]
    for at, cure in enumerate(cures):
        labelled(console, "" if at else "Next", cure["title"] + tried(cure))
        if cure["patch"] and at == 0:
            _patch(console, cure["patch"])
    more = f"neural explain {one['kind']}" + ("   neural whatif" if can_be_tried(cures) else "")
    labelled(console, "" if cures else "Next", more, style="dim")


def can_be_tried(cures: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an experiment might prove one of them, and none has been made."""
    return any(cure["patch"] for cure in cures) and all(cure["verified"] is None for cure in cures)


def tried(cure: Mapping[str, Any]) -> str:
    """What `neural whatif` made of it."""
    if cure.get("verified") is None:
        return ""
    return f" (verified: {cure['effect']})" if cure["verified"] else f" (tried: {cure['effect']})"


def _patch(console: Console, patch: str) -> None:
    from rich.text import Text

    for line in patch.rstrip("\n").splitlines():
        style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        console.print(Text(" " * LABEL_WIDTH + line, style=style), no_wrap=True, crop=False, soft_wrap=True)


def _others(console: Console, loud: Sequence[Mapping[str, Any]]) -> None:
    """Further causes; symptoms that the first one explains stand in its chain already."""
    told = {link["kind"] for link in loud[0]["chain"]}
    rest = [one for one in loud[1:] if one["kind"] not in told]
    for at, one in enumerate(rest[:MOST_OTHERS]):
        labelled(
            console,
            "" if at else "Also",
            f"{one['kind']}: {_with_place(one)}",
            label_style=_SEVERITY_STYLE[one["severity"]],
        )
    if len(rest) > MOST_OTHERS:
        labelled(console, "", f"{len(rest) - MOST_OTHERS} more: neural report --json", style="dim")


def _tried(console: Console, found: Mapping[str, Any] | None) -> None:
    """What `neural whatif` tried, and what came of each."""
    from neuraldbg.analysis.tried import effect_of
    from neuraldbg.surfaces.terminal.experiment import STYLES, WORDS, name_of

    arms = [arm for arm in found["arms"] if arm.get("verdict") in WORDS] if found else []
    for at, arm in enumerate(sorted(arms, key=lambda arm: list(WORDS).index(arm["verdict"]))[:MOST_TRIED]):
        cause = f" for {', '.join(arm['causes'])}" if arm.get("causes") else ""
        told = f"{name_of(arm)}{cause}: {WORDS[arm['verdict']]}, {effect_of(arm)}"
        labelled(console, "" if at else "Tried", told, style=STYLES[arm["verdict"]])
    if len(arms) > MOST_TRIED:
        labelled(console, "", f"{len(arms) - MOST_TRIED} more in whatif.json", style="dim")


def _with_place(one: Mapping[str, Any]) -> str:
    step = f"step {one['step']:,}" if one.get("step") is not None else None
    layer = one.get("layer") if one.get("layer") and str(one["layer"]) not in one["summary"] else None
    source = one.get("source") if one.get("source") and str(one["source"]) not in one["summary"] else None
    place = ", ".join(part for part in (step, layer, source) if part)
    return f"{one['summary'].rstrip('.')} ({place})" if place else one["summary"].rstrip(".")


def _unchecked(console: Console, summary: RunSummary) -> None:
    """What could not be looked at, and why: grouped by reason."""
    judgement = summary.judgement
    if judgement is None or not summary.steps:
        return
    reasons: dict[str, list[str]] = {}
    for kind, why in judgement.unchecked.items():
        reasons.setdefault(why, []).append(kind)
    for at, (why, kinds) in enumerate(list(reasons.items())[:MOST_UNCHECKED]):
        named = ", ".join(kinds[:3]) + (f" and {len(kinds) - 3} more" if len(kinds) > 3 else "")
        labelled(console, "" if at else "Unchecked", f"{named}: {why}", style="dim")
    for kind, why in judgement.failed.items():
        labelled(console, "Warning", f"the check {kind} failed ({why}); please report it", label_style="bold yellow")
