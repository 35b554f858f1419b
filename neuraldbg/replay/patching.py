"""Applying a unified diff of ours: every line of context has to stand where the diff says it does."""

from __future__ import annotations

import re
from pathlib import Path

HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


def apply_patch(patch: str, folder: Path) -> bool:
    """Edit the files that the patch names under `folder`; False, and nothing is changed, where it does not fit."""
    made: dict[Path, str] = {}
    for name, hunks in _files(patch):
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()) or not file.is_file():
            return False
        edited = _edited(file.read_text(encoding="utf-8").splitlines(keepends=True), hunks)
        if edited is None:
            return False
        made[file] = "".join(edited)
    for file, text in made.items():
        if file.is_symlink():
            file.unlink()
        file.write_text(text, encoding="utf-8")
    return bool(made)


def _files(patch: str) -> list[tuple[str, list[tuple[int, list[str]]]]]:
    found: list[tuple[str, list[tuple[int, list[str]]]]] = []
    lines = patch.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("--- ") and lines[at + 1 : at + 2] and lines[at + 1].startswith("+++ "):
            found.append((lines[at + 1][4:].split("\t")[0].strip(), []))
        elif (match := HUNK.match(line)) and found:
            found[-1][1].append((int(match[1]), []))
        elif found and found[-1][1] and line[:1] in (" ", "+", "-", "") and not line.startswith(("--- ", "+++ ")):
            found[-1][1][-1][1].append(line or " ")
    return found


def _edited(lines: list[str], hunks: list[tuple[int, list[str]]]) -> list[str] | None:
    made: list[str] = []
    at = 0
    for start, body in hunks:
        begin = max(start - 1, 0)
        made += lines[at:begin]
        at = begin
        for line in body:
            sign, text = line[0], line[1:]
            if sign == "+":
                made.append(text + "\n")
                continue
            if at >= len(lines) or lines[at].rstrip("\r\n") != text:
                return None
            if sign == " ":
                made.append(lines[at])
            at += 1
    return made + lines[at:] if hunks else None
