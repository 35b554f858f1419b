"""The documentation says what is: pages match the code, and every public name is on them with its docstring."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import neuraldbg

ROOT = Path(__file__).parents[1]


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


def test_the_quickstart_names_every_extra() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    given = project.partition("[project.optional-dependencies]")[2].partition("\n[project.")[0]
    extras = set(re.findall(r"^(\w+) = \[", given, re.MULTILINE))
    table = re.findall(r"^\| (`\w+`.*?) \| ", (ROOT / "docs" / "quickstart.md").read_text(), re.MULTILINE)
    wanted = re.findall(r'"([a-z-]+)', given.partition("\ndocs = ")[2].partition("\n")[0])
    assert f"constraints.txt {' '.join(wanted)}\n" in (ROOT / "Makefile").read_text()
    assert extras == {name for row in table for name in re.findall(r"`(\w+)`", row)}


def test_the_example_of_the_demo_runs_by_itself() -> None:
    text = (ROOT / "Makefile").read_text()
    examples = re.findall(r"examples/\w+\.py", text)
    assert examples
    assert all((ROOT / example).is_file() for example in examples)


REFERENCE = ROOT / "docs" / "reference"
REFERRED = {  # page -> the packages whose public names stand on it
    "neuraldbg": ("neuraldbg",),
    "debug": ("neuraldbg.debug",),
    "trace": ("neuraldbg.trace",),
    "dsl": ("neuraldbg.dsl",),
    "neural": ("neural.dashboard", "neural.profiling"),
}


def named_on(page: str) -> list[str]:
    return re.findall(r"^::: (\S+)$", (REFERENCE / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE)


def public(package: str) -> list[Any]:
    module = import_module(package)
    found = [getattr(module, name) for name in module.__all__]
    return [each for each in found if inspect.isclass(each) or inspect.isfunction(each)]


def test_every_public_name_is_in_the_reference() -> None:
    everywhere = {name for page in REFERRED for name in named_on(page)}
    wanted = {
        f"{each.__module__}.{each.__qualname__}" for all in REFERRED.values() for it in all for each in public(it)
    }
    assert wanted - everywhere == set()
    assert {page.stem for page in REFERENCE.glob("*.md")} == set(REFERRED)


@pytest.mark.parametrize("page", REFERRED)
def test_what_the_reference_names_is_there_and_says_what_it_is(page: str) -> None:
    for name in named_on(page):
        module, _, last = name.rpartition(".")
        found = getattr(import_module(module), last)
        assert found.__module__ == module, f"{name} is defined elsewhere"
        told = vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__
        assert told, f"{name} has no docstring"
        assert not told.startswith(f"{last}("), f"{name} has only what a dataclass makes"


@pytest.mark.parametrize("package", ["neuraldbg", "neuraldbg.debug", "neural.profiling", "neural.dashboard"])
def test_every_public_method_says_what_it_does(package: str) -> None:
    silent = []
    for each in filter(inspect.isclass, public(package)):
        for name, member in vars(each).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if not name.startswith("_") and inspect.isfunction(function) and not function.__doc__:
                silent.append(f"{each.__name__}.{name}")
    assert silent == []


def the_site() -> Any:
    spec = spec_from_file_location("site_build", ROOT / "docs" / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_has_every_page_in_its_navigation(tmp_path: Path) -> None:
    the_site().stage(tmp_path)
    settings = (tmp_path / "zensical.toml").read_text(encoding="utf-8")
    shown = set(re.findall(r'= "((?:docs/|README|CHANGELOG)[^"]*\.md)"', settings))
    pages = {str(page.relative_to(tmp_path / "pages")) for page in (tmp_path / "pages").rglob("*.md")}
    assert {page for page in pages if not re.match(r"docs/detectors/[a-z]", page)} == shown
    assert str(ROOT) in settings


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        "<script async src=//cdn.example.org/x.js></script>",
        '<link rel="stylesheet" href="https://fonts.example.org/css">',
        '<link href="https://fonts.example.org" rel="preconnect" crossorigin>',
        '<img alt="" src="http://example.org/pixel.gif">',
        "<style>@import url(https://example.org/x.css)</style>",
    ],
)
def test_a_page_that_asks_another_host_is_noticed(text: str, tmp_path: Path) -> None:
    site = the_site()
    (tmp_path / "page.html").write_text(text)
    assert [each.split(" asks")[0] for each in site.from_elsewhere(tmp_path)] == ["page.html"]
    (tmp_path / "page.html").write_text('<a href="https://example.org">there</a><script src="x.js"></script>')
    assert site.from_elsewhere(tmp_path) == []
