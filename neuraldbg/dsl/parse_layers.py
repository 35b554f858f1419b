"""Lists of layers: layers, branches, blocks, repeats, devices."""

from __future__ import annotations

from neuraldbg.dsl.cursor import Cursor, Unexpected
from neuraldbg.dsl.lexer import NAME, NUMBER, STRING, VARIABLE, unquote
from neuraldbg.dsl.parse_values import arguments, value
from neuraldbg.dsl.syntax import BranchNode, Item, LayerNode, Literal, Value, Variable
from neuraldbg.errors import nearest

SECTIONS = frozenset(
    [
        "input",
        "inputs",
        "layers",
        "loss",
        "optimizer",
        "metrics",
        "train",
        "training",
        "execute",
        "execution",
        "lr_schedule",
        "optimizer_param",
        "hpo",
    ]
)
TOP = frozenset({"network", "define", "research"})


def layers(cursor: Cursor) -> list[Item]:
    """After `layers:`; the list may stand in brackets or braces."""
    closing = {"[": "]", "{": "}"}.get(cursor.text() if cursor.kind() != STRING else "")
    if closing is None:
        return items(cursor)
    cursor.take()
    cursor.open()
    found = items(cursor)
    cursor.expect(closing, "to close the list of layers")
    cursor.close()
    return found


def items(cursor: Cursor) -> list[Item]:
    """Layers and branches up to a closing bracket or the next section. Goes on after a mistake."""
    found: list[Item] = []
    while not cursor.ended and not cursor.sees("}", "]"):
        if cursor.accept(",", ";"):
            continue
        if at_section(cursor):
            break
        depth = cursor.depth
        try:
            found.append(item(cursor))
        except Unexpected as error:
            cursor.report(error)
            cursor.depth = depth
            cursor.skip(stop=SECTIONS | TOP)
    return found


def at_section(cursor: Cursor) -> bool:
    """Whether a section of a network, or what stands beside networks, begins here."""
    if cursor.kind() != NAME:
        return False
    if cursor.text().lower() in SECTIONS:
        return cursor.text(1) in (":", "{", "=")
    return at_top(cursor)


def at_top(cursor: Cursor) -> bool:
    """Whether what stands beside networks begins here."""
    return cursor.kind() == NAME and cursor.text().lower() in TOP and cursor.kind(1) == NAME


def item(cursor: Cursor) -> Item:
    if cursor.kind() == STRING and cursor.text(1) == ":":
        at = cursor.at
        return _branch(cursor, unquote(cursor.take()[1]), at)
    if cursor.kind() != NAME:
        raise cursor.expected("a layer, as in Dense(64)")
    _, name, at = cursor.take()
    if cursor.sees(":"):
        return _branch(cursor, name, at)
    return _layer(cursor, name, at)


def _branch(cursor: Cursor, name: str, at: int) -> BranchNode:
    cursor.take()
    if not cursor.sees("{"):
        raise Unexpected(at, _no_section(name))
    block = _block(cursor)
    return BranchNode(name, block, at, cursor.last_at)


def _no_section(name: str) -> str:
    near = nearest(name, SECTIONS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"a branch is written {name}: {{ layers }}"
    return f"{name!r} is no section of a network; {hint}"


def _block(cursor: Cursor) -> list[Item]:
    cursor.expect("{", "to open the block")
    cursor.open()
    found = items(cursor)
    cursor.expect("}", "to close the block")
    cursor.close()
    return found


def _layer(cursor: Cursor, name: str, at: int) -> LayerNode:
    node = LayerNode(name, [], at, parentheses=False)
    if cursor.sees("("):
        node.arguments = arguments(cursor, name)
        node.parentheses = True
    while True:
        if cursor.sees("@"):
            cursor.take()
            node.device = device(cursor)
        elif cursor.sees("{") and node.block is None:
            node.block = _block(cursor)
        elif cursor.sees("*"):
            cursor.take()
            node.repeat = _repeat(cursor)
        else:
            break
    node.end = cursor.last_at
    return node


def device(cursor: Cursor) -> str:
    """After `@`: `"cuda:0"`, or the bare word, also `cuda:0` without quotes."""
    kind, text, _ = cursor.tokens[cursor.index]
    if kind == STRING:
        return unquote(cursor.take()[1])
    if kind != NAME:
        raise cursor.expected('a device, as in @ "cuda:0"')
    cursor.take()
    if cursor.sees(":") and cursor.kind(1) == NUMBER:
        cursor.take()
        return f"{text}:{cursor.take()[1]}"
    return text


def _repeat(cursor: Cursor) -> Value:
    kind, text, at = cursor.tokens[cursor.index]
    if kind == NUMBER and text.isdigit():
        cursor.take()
        return Literal(int(text[:40]), at)
    if kind == VARIABLE:
        cursor.take()
        return Variable(text[1:], at)
    if text == "(":
        return value(cursor)
    raise cursor.expected("how often, as in * 3")
