"""Patches change what they mean to and nothing else."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.analysis.fixes.editing import Script

LOOP = """import torch

for step in range(3):
    loss = net(x)  # a comment
    loss.backward()
    opt.step()
"""


def changed(script: Script, text: str | None) -> str:
    assert text is not None
    return text


def test_a_statement_is_inserted_at_the_indentation_of_its_neighbour() -> None:
    script = Script("train.py", LOOP)
    backward = script.statement(5)
    assert backward is not None
    assert "    opt.zero_grad()\n    loss.backward()\n" in changed(script, script.insert(backward, "opt.zero_grad()"))
    assert changed(script, script.insert(backward, "x()", after=True)).endswith("backward()\n    x()\n    opt.step()\n")


def test_a_statement_that_shares_its_line_is_left_alone() -> None:
    script = Script("train.py", "a = 1; b = 2\n")
    statement = script.statement(1)
    assert statement is not None
    assert script.insert(statement, "c = 3") is None
    assert script.remove(statement) is None


def test_the_last_statement_of_a_block_is_replaced_by_pass() -> None:
    script = Script("train.py", "if x:\n    y()\n")
    statement = script.statement(2)
    assert statement is not None
    assert script.remove(statement) == "if x:\n    pass\n"


def test_a_statement_moves_out_of_its_block() -> None:
    script = Script("t.py", "for e in a:\n    for b in c:\n        step()\n        sched.step()\n    print(e)\n")
    moving, loop = script.statement(4), script.statement(2)
    assert moving is not None
    inner = next(node for node in script.nodes(ast.For) if isinstance(node, ast.For) and node.lineno == 2)
    assert loop is not None
    text = changed(script, script.move(moving, inner, after=True))
    assert text == "for e in a:\n    for b in c:\n        step()\n    sched.step()\n    print(e)\n"


def test_columns_count_characters_not_bytes() -> None:
    script = Script("t.py", "y = {'ä': f(x)}\n")
    call = script.calls("f")[0]
    assert script.replace(call, "g(x)") == "y = {'ä': g(x)}\n"


def test_a_diff_is_none_when_nothing_changes_or_the_result_is_no_python() -> None:
    script = Script("t.py", "a = 1\n")
    assert script.diff("a = 1\n") is None
    assert script.diff("a = (\n") is None
    assert script.diff(None) is None


@pytest.mark.parametrize("text", ["a = 1\nb = 2\n", "a = 1\nb = 2", LOOP])
def test_patch_applies_the_diff(tmp_path: Path, text: str) -> None:
    script = Script("train.py", text)
    statement = script.statement(1)
    assert statement is not None
    new = changed(script, script.insert(statement, "first()"))
    (tmp_path / "train.py").write_text(text)
    patch = script.diff(new)
    assert patch is not None
    subprocess.run(["patch", "-p0"], input=patch, text=True, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "train.py").read_text() == new


@given(st.text(max_size=200))
def test_any_text_can_be_asked_for_its_statements(text: str) -> None:
    script = Script("x.py", text)
    for line in range(4):
        script.statement(line)
    assert script.calls("f") == [] or script.tree is not None
