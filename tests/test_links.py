"""Links of the documentation lead somewhere: to a file that is there, and to a heading that is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def links(text: str) -> Iterator[str]:
    for token in tokens(text):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target is not None:
                yield str(target)


def slug(heading: str) -> str:
    """As the sites that show Markdown make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    parsed, found, seen = tokens(text), set(), {}
    for at, token in enumerate(parsed):
        if token.type == "heading_open":
            words = "".join(child.content for child in parsed[at + 1].children or () if not child.tag or child.content)
            name = slug(words)
            again = seen[name] = seen.get(name, -1) + 1
            found.add(f"{name}-{again}" if again else name)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@cache
def anchors_of(page: Path) -> frozenset[str]:
    return frozenset(anchors(page.read_text(encoding="utf-8")))


def broken(page: Path, text: str) -> Iterator[str]:
    for link in links(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        place, _, anchor = unquote(link).partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists():
            yield f"{link}: no such file"
        elif not target.is_relative_to(ROOT):
            yield f"{link}: outside of the repository"
        elif anchor and (target.suffix != ".md" or anchor not in (anchors_of(target) if place else anchors(text))):
            yield f"{link}: no such heading"


def test_every_link_and_anchor_leads_somewhere() -> None:
    wrong = {str(page.relative_to(ROOT)): list(broken(page, page.read_text(encoding="utf-8"))) for page in PAGES}
    assert len(PAGES) > 100
    assert sum(len(list(links(page.read_text(encoding="utf-8")))) for page in PAGES) > 300
    assert {page: found for page, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a](docs/nowhere.md)", "no such file"),
        ("[a](docs/toolkit.md#no-such-heading)", "no such heading"),
        ("[a](#here)\n\n# There", "no such heading"),
        ("![picture](docs/picture.png)", "no such file"),
        ("[a][1]\n\n[1]: docs/nowhere.md", "no such file"),
        ("| t |\n|---|\n| [a](docs/nowhere.md) |", "no such file"),
    ],
)
def test_a_link_that_leads_nowhere_is_noticed(text: str, said: str) -> None:
    assert [said in each for each in broken(ROOT / "README.md", text)] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "[a](docs/toolkit.md#gradients)",
        "[a](#here)\n\n# Here",
        "[a](#watch-from-inside)\n\n## Watch, from `inside`!",
        "[a](#twice-1)\n\n# Twice\n\n# Twice",
        "`[a](docs/nowhere.md)`",
        "```\n[a](docs/nowhere.md)\n```",
        "[a](https://example.org/nowhere.md#x)",
    ],
)
def test_one_that_leads_somewhere_is_not(text: str) -> None:
    assert list(broken(ROOT / "README.md", text)) == []
