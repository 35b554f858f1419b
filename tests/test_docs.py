"""The documentation says what is: pages match the code, code blocks run, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import neuraldbg

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_api_page_has_a_heading_for_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    headings = {match.split("(")[0] for match in re.findall(r"^## `([^`]+)`", page, re.MULTILINE)}
    assert headings == set(neuraldbg.__all__)
    assert neuraldbg.__all__ == sorted(neuraldbg.__all__)


def test_every_public_name_can_be_fetched() -> None:
    for name in neuraldbg.__all__:
        assert getattr(neuraldbg, name).__doc__
    with pytest.raises(AttributeError, match="NeuralDebug"):
        neuraldbg.NeuralDebug  # noqa: B018


def test_the_cli_page_is_what_the_commands_say() -> None:
    from neuraldbg.surfaces.cli.reference import reference

    assert (ROOT / "docs" / "cli.md").read_text() == reference(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/quickstart.md", "docs/dashboard-python.md", "docs/profiling.md", "docs/adding-a-profiler.md"],
)
def test_python_blocks_run_in_order_as_written(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)


def test_the_readme_shows_commands_that_exist() -> None:
    from neuraldbg.surfaces.cli import COMMANDS

    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "quickstart.md").read_text()
    used = set(re.findall(r"^\$ neural ([a-z]+)", text, re.MULTILINE))
    assert used
    assert used <= set(COMMANDS)


def test_the_example_of_the_demo_runs_by_itself() -> None:
    text = (ROOT / "Makefile").read_text()
    examples = re.findall(r"examples/\w+\.py", text)
    assert examples
    assert all((ROOT / example).is_file() for example in examples)
