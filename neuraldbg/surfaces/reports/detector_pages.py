"""The pages of all diagnoses, written from the docstrings of their finders: `docs/detectors/<id>.md`."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from neuraldbg.analysis.catalogue import SECTIONS, Entry, catalogue

GROUPS = {
    "optim": "Step size and optimizer",
    "loop": "Training loop and API use",
    "loss": "Loss and output",
    "arch": "Architecture and initialisation",
    "data": "Data",
    "num": "Numerics",
    "sys": "System",
    "symptom": "Symptoms",
}
AUTO = {
    "R": "can be tried at run time and verified by a re-run",
    "S": "needs an edit of the source, shown as a patch where it is mechanical",
    "D": "is for you to decide",
    "N": "cannot be made by a tool",
}


def page_text(entry: Entry, width: int = 80) -> str:
    """For a terminal of some width."""
    parts = [_wrapped(f"{entry.id}: {entry.title}", width)]
    for heading in SECTIONS:
        if heading in entry.sections:
            parts.append(f"{heading}\n{_wrapped(entry.sections[heading], width, indent=2)}")
    if entry.auto:
        parts.append(_wrapped(f"The fix {AUTO[entry.auto]}.", width))
    led = leads_to(entry)
    if led:
        parts.append(f"Leads to\n{_wrapped(', '.join(led), width, indent=2)}")
    return "\n\n".join(parts)


def _wrapped(text: str, width: int, *, indent: int = 0) -> str:
    space = " " * indent
    lines = textwrap.wrap(text, width - indent - 1, break_on_hyphens=False, break_long_words=False)
    return "\n".join(space + line for line in lines)


def leads_to(entry: Entry) -> list[str]:
    return sorted(entry.explains & set(catalogue()))


def page(entry: Entry) -> str:
    """For the documentation."""
    lines = [f"# `{entry.id}`", "", entry.title, ""]
    for heading in SECTIONS:
        if heading in entry.sections:
            lines += [f"**{heading}.** {entry.sections[heading]}", ""]
    if entry.auto:
        lines += [f"The fix {AUTO[entry.auto]}.", ""]
    led = leads_to(entry)
    if led:
        lines += ["Leads to: " + ", ".join(f"[`{each}`]({each}.md)" for each in led), ""]
    lines += [f"`neural explain {entry.id}` prints this page. [All diagnoses](README.md)", ""]
    return "\n".join(lines)


def index() -> str:
    lines = ["# Diagnoses", "", "Written from the code by `make docs`. A run's report names these ids.", ""]
    for group, title in GROUPS.items():
        of_group = sorted((one for one in catalogue().values() if one.group == group), key=lambda one: one.id)
        if of_group:
            lines += [f"## {title}", "", "| id | what it is |", "| --- | --- |"]
            lines += [f"| [`{one.id}`]({one.id}.md) | {one.title} |" for one in of_group] + [""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """File name -> text, the index among them."""
    return {"README.md": index(), **{f"{one.id}.md": page(one) for one in catalogue().values()}}


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for stale in folder.glob("*.md"):
        if stale.name not in wanted:
            stale.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
