"""Patches change what they mean to and nothing else."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.analysis.fixes.editing import Script, with_argument
from neuraldbg.analysis.fixes.placing import assigned_number, products_at
from neuraldbg.analysis.fixes.thresholds import with_scores

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


FITTING = """import torch

net = nn.Linear(2, 1)
x, y = load(10)

def accuracy(x):
    for x in x:
        pass

for epoch in range(3):
    for step in range(4):
        opt.zero_grad()
"""


def test_a_variable_is_bound_where_it_is_used() -> None:
    script = Script("t.py", FITTING)
    uses = [node for node in script.nodes(ast.Name) if isinstance(node, ast.Name) and node.id == "x"]
    at_the_top = next(node for node in uses if script.function_around(node) is None)
    inside = next(node for node in uses if script.function_around(node) is not None)
    assert [node.lineno for node in script.bindings(at_the_top) if isinstance(node, ast.Name)] == [4]
    assert len(script.bindings(inside)) == 2  # the parameter and the loop


def test_the_loop_around_a_statement_is_the_innermost() -> None:
    script = Script("t.py", FITTING)
    clearing = script.statement(12)
    assert clearing is not None
    inner = script.loop_around(clearing)
    assert inner is not None
    assert inner.lineno == 11
    outer = script.loop_around(inner)
    assert outer is not None
    assert outer.lineno == 10
    assert script.loop_around(outer) is None


def test_several_lines_are_inserted_at_their_places() -> None:
    script = Script("t.py", FITTING)
    first, last = script.statement(3), script.statement(12)
    assert first is not None
    assert last is not None
    text = changed(script, script.insert_all({first: "torch.manual_seed(0)", last: "net.train()"}))
    assert "torch.manual_seed(0)\nnet = nn.Linear(2, 1)\n" in text
    assert "        net.train()\n        opt.zero_grad()\n" in text


def test_parts_of_an_expression_are_rewritten() -> None:
    script = Script("t.py", "total = torch.tensor(a.item() + b.item())\n")
    outer = script.calls("tensor")[0]
    items = [(call, call.func.value.id) for call in script.calls("item")]  # type: ignore[attr-defined]
    assert script.rewritten(outer.args[0], [*items]) == "a + b"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()\n", "f(c=1)\n"),
        ("f(a)\n", "f(a, c=1)\n"),
        ("f(\n    a,\n    b=2,\n)\n", "f(\n    a,\n    b=2, c=1,\n)\n"),
    ],
)
def test_an_argument_is_added_at_the_end(before: str, after: str) -> None:
    script = Script("t.py", before)
    assert with_argument(script, script.calls("f")[0], "c=1") == after


# -- thresholds of a model that no longer ends in a sigmoid -----------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("acc = (net(x) > 0.5).float()\n", "acc = (net(x) > 0).float()\n"),
        ("out = net(x).squeeze(1)\nhit = out >= .5\n", "out = net(x).squeeze(1)\nhit = out >= 0\n"),
        ("p = torch.sigmoid(net(x))\nhit = p > 0.5\n", "p = torch.sigmoid(net(x))\nhit = p > 0.5\n"),
        ("keep = torch.rand(3) > 0.5\n", "keep = torch.rand(3) > 0.5\n"),
        ("hit = net(x).round() == y\n", None),
    ],
)
def test_half_a_probability_is_a_score_of_zero(before: str, after: str | None) -> None:
    assert with_scores(Script("train.py", before), {"net"}) == after


# -- where a number and an operand are written -------------------------------------------------------------------------


def test_a_number_given_at_the_only_call_is_the_one_to_change() -> None:
    script = Script("train.py", "def fit(net, limit):\n    clip(net, limit)\n\nfit(net, limit=2e-5)\n")
    (clip,) = script.calls("clip")
    literal = assigned_number(script, clip.args[1])
    assert literal is not None
    assert changed(script, script.replace(literal, "1")).endswith("fit(net, limit=1)\n")


def test_a_number_that_calls_disagree_about_is_left_alone() -> None:
    text = "def fit(net, limit):\n    clip(net, limit)\n\nfit(net, limit=2e-5)\nfit(net, limit=1)\n"
    script = Script("train.py", text)
    assert assigned_number(script, script.calls("clip")[0].args[1]) is None


def test_operations_with_plain_numbers_are_no_products_of_two_things() -> None:
    script = Script("train.py", "loss = 0.5 * (logp * gain).mean() + 2 * rest\n")
    (found,) = products_at(script, 1, ast.Mult)
    assert script.source(found) == "logp * gain"
