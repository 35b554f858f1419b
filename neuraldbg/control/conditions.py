"""The condition of a breakpoint: the original's Python syntax, in a small language of our own.

A condition may come over a socket, so it is never evaluated as Python: the text is parsed, every node must be one of
the few below, and what is compiled is built from those nodes alone. It can compare, calculate and combine the numbers
of a layer and nothing else; it cannot loop, grow or reach an object.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from neuraldbg.errors import ConditionError, nearest

LONGEST = 500  # characters
MOST_NODES = 120
DEEPEST = 24
LARGEST_INT = 10**18
ALLOWED = (
    ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.FloorDiv,
)  # fmt: skip
REFUSED = {
    ast.Attribute: "attributes are not part of the language (np.isnan, np.isinf, np.isfinite, np.abs and np.log10 are)",
    ast.Pow: "** is not part of the language: its results grow without bound",
    ast.Lambda: "a condition defines no functions",
    ast.JoinedStr: "text is only allowed as a key: layer_data['grad_norm']",
    ast.NamedExpr: "a condition assigns nothing",
    ast.Await: "a condition waits for nothing",
    ast.IfExp: "write it with and / or",
    ast.Starred: "a condition works on single numbers",
    ast.List: "a condition works on single numbers",
    ast.Tuple: "a condition works on single numbers",
    ast.Set: "a condition works on single numbers",
    ast.Dict: "a condition works on single numbers",
    ast.In: "`in` is not part of the language",
    ast.NotIn: "`in` is not part of the language",
    ast.Is: "compare numbers with == and !=",
    ast.IsNot: "compare numbers with == and !=",
    ast.ListComp: "a condition does not loop",
    ast.SetComp: "a condition does not loop",
    ast.DictComp: "a condition does not loop",
    ast.GeneratorExp: "a condition does not loop",
}
CONSTANTS = {"True": True, "False": False, "inf": math.inf, "nan": math.nan}
Values = Mapping[str, Any]
_DATA = "layer_data"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")  # as the parser counts them


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else (-math.inf if value == 0 else math.nan)


FUNCTIONS: dict[str, Callable[[float], Any]] = {
    "isnan": math.isnan,
    "isinf": math.isinf,
    "isfinite": math.isfinite,
    "abs": abs,
    "log10": _log10,
}
_GLOBALS = {"__builtins__": {}, "_missing": KeyError, **{f"_{name}": function for name, function in FUNCTIONS.items()}}


@dataclass(frozen=True, slots=True)
class Condition:
    text: str
    keys: frozenset[str]
    holds: Callable[[Values], bool]  # False where something it names is not known; may raise an ArithmeticError

    def __call__(self, values: Values) -> bool:
        return self.holds(values)


def parse_condition(text: str, keys: Iterable[str] | None = None) -> Condition:
    """The condition in a text; ConditionError says where and why not. `keys` are the names there are; None: any."""
    if not isinstance(text, str):
        raise ConditionError("a condition is a text", text=repr(text), column=0)
    if len(text) > LONGEST:
        raise ConditionError(f"a condition has at most {LONGEST} characters; this one has {len(text)}", text, LONGEST)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        # of a text that is not finished the parser says no place: that is its end
        column = _column(text, error.lineno, error.offset - 1) if error.lineno and error.offset else len(text.rstrip())
        raise ConditionError(f"not Python syntax: {error.msg}", text, column) from None
    except (ValueError, MemoryError, RecursionError, OverflowError) as error:
        raise ConditionError(f"not Python syntax: {error}", text, 0) from None
    if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise ConditionError(f"too long: at most {MOST_NODES} parts", text, 0)
    reader = _Reader(text, None if keys is None else tuple(keys))
    body = reader.read(tree.body, 0)
    return Condition(text, frozenset(reader.used), _compiled(body, reader.used))


class _Reader:
    """Builds a new tree out of the parts it knows; nothing of the old one is kept."""

    def __init__(self, text: str, keys: tuple[str, ...] | None) -> None:
        self.text = text
        self.keys = keys
        self.used: dict[str, str] = {}  # key -> the variable that holds its value

    def refuse(self, node: ast.expr, why: str, *, after: ast.expr | None = None) -> ConditionError:
        """At the node, or at what stands `after` a part of it."""
        if after is None:
            return ConditionError(why, self.text, _column_of_bytes(self.text, node.lineno, node.col_offset))
        end = _column_of_bytes(self.text, after.end_lineno or 1, after.end_col_offset or 0)
        rest = self.text[end:]
        return ConditionError(why, self.text, end + len(rest) - len(rest.lstrip(" \t\n)")))

    def read(self, node: ast.expr, depth: int) -> ast.expr:
        if depth > DEEPEST:
            raise self.refuse(node, f"nested more than {DEEPEST} deep")
        inner = depth + 1
        match node:
            case ast.BoolOp(op, values):
                return ast.BoolOp(self.operator(op, node, values[0]), [self.read(each, inner) for each in values])
            case ast.UnaryOp(op, operand):
                return ast.UnaryOp(self.operator(op, node), self.read(operand, inner))
            case ast.BinOp(left, op, right):
                return ast.BinOp(self.read(left, inner), self.operator(op, node, left), self.read(right, inner))
            case ast.Compare(left, ops, others):
                operators = [self.operator(op, node, before) for op, before in zip(ops, [left, *others], strict=False)]
                return ast.Compare(self.read(left, inner), operators, [self.read(each, inner) for each in others])
            case ast.Constant(value):
                return ast.Constant(self.number(value, node))
            case ast.Name(name):
                return self.name(name, node)
            case ast.Subscript(ast.Name("layer_data"), ast.Constant(str() as key) as place):
                return self.key(key, place)
            case ast.Call():
                return self.call(node, inner)
        before = node.value if isinstance(node, ast.Attribute) else None
        why = REFUSED.get(type(node), f"{type(node).__name__} is not part of the language")
        raise self.refuse(node, why, after=before)

    def operator(self, op: Any, node: ast.expr, before: ast.expr | None = None) -> Any:
        if not isinstance(op, ALLOWED):
            why = REFUSED.get(type(op), f"{type(op).__name__} is not part of the language")
            raise self.refuse(node, why, after=before)
        made: Callable[[], Any] = type(op)
        return made()

    def number(self, value: Any, node: ast.expr) -> float | int:
        if isinstance(value, str | bytes):
            raise self.refuse(node, "text is only allowed as a key: layer_data['grad_norm']")
        if not isinstance(value, bool | int | float):
            raise self.refuse(node, f"{type(value).__name__} is not a number")
        if isinstance(value, int) and abs(value) > LARGEST_INT:
            raise self.refuse(node, "whole numbers go up to 1e18; write larger ones as 1e30")
        return value

    def name(self, name: str, node: ast.expr) -> ast.expr:
        if name in CONSTANTS:
            return ast.Constant(CONSTANTS[name])
        if name == _DATA:
            raise self.refuse(node, "layer_data is used as layer_data['key']")
        return self.key(name, node)

    def key(self, key: str, node: ast.expr) -> ast.expr:
        if self.keys is not None and key not in self.keys:
            near = nearest(key, self.keys)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.keys)}"
            raise self.refuse(node, f"no value {key!r}; {hint}")
        if not key.isidentifier() or key.startswith("__"):
            raise self.refuse(node, f"{key!r} is no name of a value")
        return ast.Name(self.used.setdefault(key, f"v{len(self.used)}"), ast.Load())

    def call(self, node: ast.Call, depth: int) -> ast.expr:
        match node.func:
            case ast.Attribute(ast.Name("np" | "numpy" | "math"), name) | ast.Name(name):
                pass
            case _:
                raise self.refuse(node, f"only {', '.join(FUNCTIONS)} can be called")
        if name not in FUNCTIONS:
            near = nearest(name, FUNCTIONS)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(FUNCTIONS)}"
            raise self.refuse(node, f"no function {name!r}; {hint}")
        if node.keywords or len(node.args) != 1:
            raise self.refuse(node, f"{name} takes one value")
        return ast.Call(ast.Name(f"_{name}", ast.Load()), [self.read(node.args[0], depth)], [])


def _column(text: str, line: int, column: int) -> int:
    """Where in the text as it was typed: the parser was given it without the blanks around it, and counts by lines."""
    before = _LINE.findall(text.strip())[: line - 1]
    return len(text) - len(text.lstrip()) + sum(map(len, before)) + column


def _column_of_bytes(text: str, line: int, column: int) -> int:
    """The same of a node, whose columns are bytes of UTF-8."""
    own = _LINE.findall(text.strip())[line - 1]
    return _column(text, line, len(own.encode()[:column].decode(errors="ignore")))


def _compiled(body: ast.expr, keys: Mapping[str, str]) -> Callable[[Values], bool]:
    """One function that fetches the values, looks whether all are known, and judges: a second call would cost as much
    again."""
    lines = ["def holds(d):", " try:", *(f"  {name} = d[{key!r}]" for key, name in keys.items()), "  pass"]
    lines += [" except _missing:", "  return False"]
    lines += [f" if {name} is None: return False" for name in keys.values()]
    tree = ast.parse("\n".join([*lines, " return True if None else False"]))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    last = function.body[-1]
    assert isinstance(last, ast.Return)
    assert isinstance(last.value, ast.IfExp)
    last.value.test = body
    whole = compile(ast.fix_missing_locations(tree), "<condition>", "exec")
    code = next(each for each in whole.co_consts if isinstance(each, CodeType))
    return FunctionType(code, dict(_GLOBALS))
