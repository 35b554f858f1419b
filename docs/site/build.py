"""Builds the documentation as a static site: python docs/site/build.py [FOLDER]

README, docs and examples are put side by side as they lie in the repository, Zensical makes pages of them, and
mkdocstrings the API reference of the docstrings. Fails on a broken link or anchor, on a name that has no docstring to
show, and on a page that would ask anything of another host.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
TAKEN = ("README.md", "CHANGELOG.md", "LICENSE", "docs", "examples")
FETCHED = re.compile(r"""<(?:script|img|iframe|source|audio|video|embed)\b[^>]*\bsrc=["']?(?:https?:)?//[^\s"'>]+""")
STYLED = re.compile(
    r"""<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon|prefetch))[^>]*href=["']?(?:https?:)?//"""
)
IMPORTED = re.compile(r"""(?:@import\s+|url\()["']?(?:https?:)?//[^\s"')]+""")


def main() -> int:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs").resolve()
    stage(target)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    if code := subprocess.run(command, cwd=target, check=False).returncode:
        return code
    wrong = [*not_rendered(target), *from_elsewhere(target / "site")]
    for each in wrong:
        print(f"docs: {each}", file=sys.stderr)
    if not wrong:
        print(f"docs: {target / 'site' / 'index.html'}")
    return 1 if wrong else 0


def stage(target: Path) -> None:
    pages = target / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    for name in TAKEN:
        given = ROOT / name
        if given.is_dir():
            shutil.copytree(given, pages / name, ignore=shutil.ignore_patterns("site", "__pycache__", "neuraldbg_runs"))
        else:
            shutil.copy(given, pages / name)
    settings = (HERE / "zensical.toml").read_text(encoding="utf-8")
    (target / "zensical.toml").write_text(settings.replace('"ROOT"', f'"{ROOT}"'), encoding="utf-8")


def not_rendered(target: Path) -> list[str]:
    """Pages that are missing, and names whose docstrings are."""
    found = []
    for page in sorted((target / "pages").rglob("*.md")):
        place = page.relative_to(target / "pages")
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        made = target / "site" / place.with_name(name)
        if not made.is_file():
            found.append(f"{place} was not built")
            continue
        text = made.read_text(encoding="utf-8")
        wanted = re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        found += [f"{place}: no reference of {name}" for name in wanted if f'id="{name}"' not in text]
    return found


def from_elsewhere(site: Path) -> list[str]:
    """What a browser would fetch from another host when a page is opened."""
    found = []
    for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        text = file.read_text(encoding="utf-8")
        for pattern in (FETCHED, STYLED, IMPORTED):
            found += [f"{file.relative_to(site)} asks another host: {each[:200]}" for each in pattern.findall(text)]
    return found


if __name__ == "__main__":
    sys.exit(main())
