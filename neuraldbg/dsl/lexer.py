"""Text to tokens. A token is a plain tuple (kind, text, offset): a file of 10,000 lines has more than 100,000."""

from __future__ import annotations

import re
from typing import Final

from neuraldbg.dsl.problems import Problem, Severity, Source

Token = tuple[str, str, int]  # kind, text, offset

LARGEST_FILE: Final = 8_000_000  # characters
NUMBER, STRING, NAME, VARIABLE, PUNCTUATION, END = "number", "string", "name", "variable", "punctuation", "end"

_TOKEN: Final = re.compile(
    r"""
    (?P<space>[ \t\r\n\f\v\ufeff\u00a0]+)
  | (?P<comment>\#[^\n]*|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
  | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![A-Za-z_0-9]))
  | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<variable>\$[A-Za-z_][A-Za-z0-9_]*)
  | (?P<punctuation>[{}()\[\]:,;=@*+\-%]|/(?!\*))
    """,
    re.VERBOSE,
)
_ESCAPES: Final = {"n": "\n", "t": "\t"}


def tokenize(source: Source) -> tuple[list[Token], list[Token], list[Problem]]:
    """Tokens (the last one is `end`), comments, and what could not be read."""
    text = source.text
    if len(text) > LARGEST_FILE:
        why = f"the file has {len(text):,} characters; more than {LARGEST_FILE:,} are refused"
        return [(END, "", 0)], [], [source.problem(Severity.CRITICAL, 0, why)]
    tokens: list[Token] = []
    comments: list[Token] = []
    problems: list[Problem] = []
    match, at, size = _TOKEN.match, 0, len(text)
    add = tokens.append
    while at < size:
        found = match(text, at)
        if found is None:
            at = _skip_bad(source, at, problems)
            continue
        kind = found.lastgroup
        if kind == "comment":
            comments.append((kind, found.group(), at))
        elif kind != "space":
            add((kind, found.group(), at))  # type: ignore[arg-type]
        at = found.end()
    add((END, "", size))
    return tokens, comments, problems


def _skip_bad(source: Source, at: int, problems: list[Problem]) -> int:
    """Say what cannot start a word here; the offset to go on from."""
    text = source.text
    character = text[at]
    end = at + 1
    if character in "\"'":
        line_end = text.find("\n", at)
        end = line_end if line_end >= 0 else len(text)
        why = f"this string has no closing {character}"
    elif text.startswith("/*", at):
        why, end = "this comment has no closing */", len(text)
    elif character == "$":
        why = "a name must follow $, as in $filters"
    elif character.isdigit() or character == ".":
        while end < len(text) and (text[end].isalnum() or text[end] in "_."):
            end += 1
        shown = text[at:end]
        why = f"{shown[:40]!r} is neither a number nor a name" if len(shown) > 1 else "a lone '.' has no meaning here"
    else:
        why = f"the character {character!r} has no meaning here"
    if len(problems) < 100:
        problems.append(source.problem(Severity.ERROR, at, why))
    return end


def unquote(text: str) -> str:
    """The value of a string token."""
    inner = text[1:-1]
    if "\\" not in inner:
        return inner
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found.group(1), found.group(1)), inner)


def quote(value: str) -> str:
    """A string token of a value; `unquote` gives it back."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
