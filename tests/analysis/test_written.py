"""A number is blamed where it is written, not where it is used."""

from __future__ import annotations

import ast

import pytest

from neuraldbg.analysis.written import _counted, _loops, _written


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("CLIP = 1e-4\nuse(p, CLIP)", 1),
        ("use(p,\n    1e-4)", 2),
        ("HP = dict(lr=0.1,\n  clip=1e-4)\nuse(p, HP['clip'])", 2),
        ("HP = {'lr': 0.1,\n  'clip': 1e-4}\nuse(p, HP['clip'])", 2),
        ("p.add_argument('--max-clip', type=float,\n   default=1e-4)\nuse(p, args.max_clip)", 2),
        ("class C:\n  clip: float = 1e-4\nuse(p, cfg.clip)", 2),
        ("def f(p, clip=1e-4):\n  use(p, clip)", 1),
        ("def f(p, clip):\n  use(p, clip)\nf(p, clip=1e-4)", 3),
        ("a, clip = 3, 1e-4\nuse(p, clip)", 1),
        ("clip = compute()\nuse(p, clip)", None),
    ],
)
def test_the_line_of_a_number(text: str, line: int | None) -> None:
    tree = ast.parse(text)
    use = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "use")
    assert _written(tree, use.args[1]) == line


def test_the_outermost_loop_is_found_through_a_function() -> None:
    tree = ast.parse("def epoch():\n  for x in loader:\n    opt.step()\nfor e in tqdm(range(2, EPOCHS)):\n  epoch()")
    loops = _loops(tree, 3, 3)
    counted = _counted(loops[-1])
    assert [loop.lineno for loop in loops] == [2, 4]
    assert counted is not None
    assert ast.unparse(counted) == "EPOCHS"
