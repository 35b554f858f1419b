"""Values and arguments: numbers, strings, tuples, lists, dicts, calls, arithmetic over `$variables`."""

from __future__ import annotations

from neuraldbg.dsl.cursor import Cursor, Unexpected
from neuraldbg.dsl.lexer import NAME, NUMBER, STRING, VARIABLE, unquote
from neuraldbg.dsl.syntax import Argument, Binary, Call, Literal, Mapping, Negative, Sequence, Value, Variable, Word

_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}
MOST_OPERATORS = 100  # in one sum or product
LONGEST_NUMBER = 40  # digits; more is a mistake or an attack


def value(cursor: Cursor) -> Value:
    """An expression; `+ -` bind weaker than `* / %`."""
    left = _product(cursor)
    count = 0
    while cursor.sees("+", "-"):
        count = _counted(cursor, count)
        at = cursor.at
        operator = cursor.take()[1]
        left = Binary(operator, left, _product(cursor), at)
    return left


def _counted(cursor: Cursor, count: int) -> int:
    if count >= MOST_OPERATORS:
        raise Unexpected(cursor.at, f"more than {MOST_OPERATORS} operators in one expression are refused")
    return count + 1


def _product(cursor: Cursor) -> Value:
    left = _signed(cursor)
    count = 0
    while cursor.sees("*", "/", "%"):
        count = _counted(cursor, count)
        at = cursor.at
        operator = cursor.take()[1]
        left = Binary(operator, left, _signed(cursor), at)
    return left


def _signed(cursor: Cursor) -> Value:
    if not cursor.sees("-", "+"):
        return _atom(cursor)
    at = cursor.at
    minus = False
    while cursor.sees("-", "+"):
        minus ^= cursor.take()[1] == "-"
    operand = _atom(cursor)
    return Negative(operand, at) if minus else operand


def _atom(cursor: Cursor) -> Value:
    kind, text, at = cursor.tokens[cursor.index]
    if kind == NUMBER:
        cursor.index += 1
        return Literal(_number(text, at), at)
    if kind == NAME:
        cursor.index += 1
        if cursor.sees("("):
            return Call(text, arguments(cursor, text), at)
        lower = text.lower()
        return Literal(_WORDS[lower], at) if lower in _WORDS else Word(text, at)
    if kind == STRING:
        cursor.index += 1
        return Literal(unquote(text), at)
    if kind == VARIABLE:
        cursor.index += 1
        return Variable(text[1:], at)
    if text in ("(", "["):
        return _sequence(cursor)
    if text == "{":
        return mapping(cursor)
    raise cursor.expected("a value")


def _number(text: str, at: int) -> int | float:
    if len(text) > LONGEST_NUMBER:
        raise Unexpected(at, f"a number of {len(text)} characters is refused")
    if text.isdigit():
        return int(text)
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Unexpected(at, f"{text} is too large for a number")
    return number


def _sequence(cursor: Cursor) -> Sequence:
    at = cursor.at
    opening = cursor.take()[1]
    closing = ")" if opening == "(" else "]"
    cursor.open()
    items: list[Value] = []
    comma = False
    while not cursor.sees(closing):
        items.append(value(cursor))
        comma = cursor.accept(",")
        if not comma and not cursor.sees(closing):
            raise cursor.expected(f"',' or {closing!r}")
    cursor.take()
    cursor.close()
    single = opening == "(" and len(items) == 1 and not comma
    return Sequence(items, "" if single else opening + closing, at)


def mapping(cursor: Cursor) -> Mapping:
    """`{ key: value, key = value }`; commas and semicolons may be left out."""
    at = cursor.at
    cursor.expect("{", "to open the block")
    cursor.open()
    items = entries(cursor)
    cursor.expect("}", "to close the block")
    cursor.close()
    return Mapping(items, at)


def entries(cursor: Cursor) -> list[Argument]:
    items: list[Argument] = []
    while not cursor.sees("}") and not cursor.ended and not cursor.sees("@"):
        if cursor.accept(",", ";"):
            continue
        items.append(_entry(cursor))
    return items


def _entry(cursor: Cursor) -> Argument:
    kind, text, at = cursor.tokens[cursor.index]
    if kind not in (NAME, STRING) and not (kind == NUMBER and cursor.text(1) in (":", "=")):
        raise cursor.expected("a name and its value, as in epochs: 10")
    cursor.index += 1
    name = unquote(text) if kind == STRING else text
    if cursor.sees("{"):
        return Argument(name, mapping(cursor), at)
    if not cursor.accept(":", "="):
        raise cursor.expected(f"':' after {name!r}")
    return Argument(name, value(cursor), at)


def arguments(cursor: Cursor, owner: str) -> list[Argument]:
    """`(a, b, key=c, key: d)`."""
    opened = cursor.line_of(cursor.expect("(", f"after {owner}")[2])
    cursor.open()
    found: list[Argument] = []
    while not cursor.sees(")"):
        found.append(_argument(cursor))
        if not cursor.accept(",", ";") and not cursor.sees(")"):
            where = "" if cursor.line_of(cursor.at) == opened else f", opened on line {opened}"
            raise cursor.expected(f"',' or ')' in the arguments of {owner}{where}")
    cursor.index += 1
    cursor.close()
    return found


def _argument(cursor: Cursor) -> Argument:
    kind, text, at = cursor.tokens[cursor.index]
    if kind == NAME and cursor.text(1) in ("=", ":") and cursor.kind(1) != STRING:
        cursor.index += 2
        return Argument(text, value(cursor), at)
    return Argument(None, value(cursor), at)
