"""Every block of code in the documentation works as it stands: Python runs, commands exist, settings are read."""

from __future__ import annotations

import re
import shlex
import sys
from itertools import dropwhile, takewhile
from pathlib import Path

import click
import pytest
import yaml

from neuraldbg.dsl import parse
from neuraldbg.records import Phase
from neuraldbg.surfaces.cli import COMMANDS, cli
from neuraldbg.surfaces.cli.debug import DebugCommand
from neuraldbg.surfaces.cli.target import split_target

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
KINDS = {"python", "console", "bash", "yaml", "toml", "sql", "text", ""}
ELSEWHERE = {"cloud.md": "tests/cloud/test_cloud_execution.py"}  # whose Python needs more than a folder
PROGRAMS = {"neural", "make", "python", "curl", "tensorboard", "sbatch"}


def blocks(page: Path, *kinds: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text(encoding="utf-8")) if kind in kinds]


def commands(page: Path) -> list[str]:
    """What somebody would type, without the lines that come back."""
    typed = [line for text in blocks(page, "bash") for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    shown = "\n".join(blocks(page, "console", "")).replace("\\\n", " ")
    return typed + re.findall(r"^\$ (.+)$", shown, re.MULTILINE)


def words_of(line: str) -> list[str]:
    """Of the first program of a line, without the variables before it."""
    words = list(takewhile(lambda word: word not in ("|", ">", "&&"), shlex.split(line, comments=True)))
    return list(dropwhile(lambda word: re.fullmatch(r"[A-Z_]+=.*", word), words))


def test_no_block_is_of_a_kind_that_nobody_looks_at() -> None:
    found = {kind for page in PAGES for kind, _ in FENCE.findall(page.read_text(encoding="utf-8"))}
    assert found <= KINDS


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page.name not in ELSEWHERE],
    ids=lambda page: page.stem,
)
def test_python_blocks_run_in_order_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page.name == "trace-format.md":
        monkeypatch.setattr(sys, "argv", ["read.py", str(a_segment(tmp_path / "run"))])
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), namespace)


def a_segment(folder: Path) -> Path:
    from made_runs import made_run

    with made_run(folder) as run:
        layer = run.module("fc1", "Linear", run.model())
        for step in range(3):
            run.span(layer, Phase.FORWARD, step, duration_ms=1.0)
        run.end(steps=3)
    return max((folder / "rank-00000").glob("[js]*.ndt"))


@pytest.mark.parametrize("page", ELSEWHERE)
def test_a_page_that_runs_elsewhere_really_does(page: str) -> None:
    assert page in (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_exist_with_their_options(page: Path) -> None:
    for line in commands(page):
        words = words_of(line)
        assert words[0] in PROGRAMS, line
        if words[0] == "neural":
            assert words[1] in COMMANDS, line
            assert understood(words[1], words[2:]), line
        elif words[0] == "python" and words[1].startswith(("benchmarks", "examples")):
            assert (ROOT / words[1]).exists(), line
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line


def understood(name: str, words: list[str]) -> bool:
    """Whether the command takes these options; nothing is run or looked for."""
    with click.Context(cli, info_name="neural", **cli.context_settings) as outer:  # -h too: click keeps the option
        command = cli.get_command(outer, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=outer) as context:
            try:
                command.make_parser(context).parse_args(own_words(command, words))
            except click.UsageError as error:
                pytest.fail(f"neural {name} {shlex.join(words)}: {error.format_message()}")
    return True


def own_words(command: click.Command, words: list[str]) -> list[str]:
    """Without those that belong to the user's script."""
    if not isinstance(command, DebugCommand):
        return list(words)
    taken = {name: p.nargs for p in command.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts}
    return [*split_target(words, taken).own]


def test_an_option_that_is_not_there_is_noticed() -> None:
    with pytest.raises(pytest.fail.Exception, match="--no-such-option"):
        understood("report", ["--no-such-option"])


def test_settings_are_read_and_known(tmp_path: Path) -> None:
    from neuraldbg.config import load_config

    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w.]+)`:\n\n```(?:yaml|toml)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in names] == ["neural_config.yaml", "config.yaml", "pyproject.toml"]
    for name, text in names:
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(text)
        config = load_config(cwd=folder, environ={})
        assert list(config.notes) == []
        assert name.endswith("toml") or yaml.safe_load(text)
    assert load_config(cwd=tmp_path / "pyproject.toml", environ={}).history.inspector == 200


@pytest.mark.parametrize("page", [page for page in PAGES if "network " in page.read_text()], ids=lambda page: page.stem)
def test_networks_and_research_are_read(page: Path) -> None:
    texts = [text for text in blocks(page, "") if re.search(r"^(?:network|research) \w+ \{", text, re.MULTILINE)]
    for text in texts:
        assert [each.message for each in parse(text).problems if each.severity.fatal] == []
