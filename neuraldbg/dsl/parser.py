"""Tokens to tree: files, networks, macros, research notes. Reads on after a mistake, so that one run shows several."""

from __future__ import annotations

from collections.abc import Callable

from neuraldbg.dsl.cursor import Cursor, TooDeep, Unexpected
from neuraldbg.dsl.lexer import NAME, STRING, Token, tokenize, unquote
from neuraldbg.dsl.parse_layers import SECTIONS, TOP, at_section, at_top, device, layers
from neuraldbg.dsl.parse_layers import items as layer_items
from neuraldbg.dsl.parse_values import arguments, entries, value
from neuraldbg.dsl.problems import Problem, Severity, Source
from neuraldbg.dsl.syntax import Argument, File, Literal, Macro, NetworkNode, Research, Section
from neuraldbg.errors import nearest

_BLOCKS = frozenset({"train", "training", "execute", "execution", "hpo"})


def read(source: Source) -> tuple[File, list[Token], list[Problem]]:
    """The tree, the comments, and every mistake that was found."""
    tokens, comments, problems = tokenize(source)
    cursor = Cursor(source, tokens)
    cursor.problems += problems
    file = File([])
    try:
        _file(cursor, file)
    except TooDeep as error:
        cursor.problems.append(source.problem(Severity.CRITICAL, error.at, str(error)))
    return file, comments, cursor.problems


def _file(cursor: Cursor, file: File) -> None:
    readers: dict[str, Callable[[Cursor], Macro | NetworkNode | Research]] = {
        "network": _network,
        "define": _macro,
        "research": _research,
    }
    while not cursor.ended:
        if cursor.accept(";", ","):
            continue
        depth = cursor.depth
        try:
            reader = readers.get(cursor.text().lower()) if cursor.kind() == NAME else None
            if reader is None:
                raise Unexpected(cursor.at, _no_beginning(cursor))
            file.items.append(reader(cursor))
        except Unexpected as error:
            cursor.report(error)
            cursor.depth = depth
            _skip_to_top(cursor)


def _no_beginning(cursor: Cursor) -> str:
    text = cursor.text()[:40]
    if text in ("}", "]", ")"):
        return f"this {text!r} closes nothing"
    near = nearest(text, TOP, 1) if cursor.kind() == NAME else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"expected 'network', 'define' or 'research', not {text!r}{hint}"


def _skip_to_top(cursor: Cursor) -> None:
    cursor.take()
    while not cursor.ended and not at_top(cursor):
        cursor.take()


def _network(cursor: Cursor) -> NetworkNode:
    at = cursor.take()[2]
    name = cursor.expect_name("the name of the network")[1]
    node = NetworkNode(name, [], at)
    cursor.expect("{", f"to open network {name}")
    cursor.open()
    while not cursor.sees("}"):
        if cursor.accept(",", ";"):
            continue
        if cursor.ended or at_top(cursor):
            raise Unexpected(cursor.at, f"expected '}}' to close network {name}, opened on line {cursor.line_of(at)}")
        depth, begun = cursor.depth, cursor.index
        try:
            node.sections.append(_section(cursor))
        except Unexpected as error:
            cursor.report(error)
            cursor.depth = depth
            if not _next_is_found(cursor, begun):
                cursor.skip(stop=SECTIONS | TOP)
    node.end = cursor.take()[2]
    cursor.close()
    return node


def _next_is_found(cursor: Cursor, begun: int) -> bool:
    """Whether the mistake was met where the next section begins, or right behind its name."""
    for back in (0, 1):
        if cursor.index - back > begun:
            cursor.index -= back
            if at_section(cursor):
                return True
            cursor.index += back
    return False


def _section(cursor: Cursor) -> Section:
    if cursor.kind() != NAME:
        raise cursor.expected("a section, as in layers:")
    key, at = cursor.text(), cursor.at
    key = key.lower() if key.lower() in SECTIONS else key
    if key not in SECTIONS:
        near = nearest(key, SECTIONS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(sorted(SECTIONS - {'inputs'}))}"
        error = Unexpected(at, f"{key!r} is no section of a network; {hint}")
        if not near or cursor.text(1) not in (":", "=", "{"):
            raise error
        cursor.report(error)  # and what stands in it is read as meant
        key = near[0]
    cursor.take()
    section = Section({"inputs": "input", "training": "train"}.get(key, key), at)
    if not cursor.accept(":", "=") and not cursor.sees("{"):
        raise cursor.expected(f"':' after {key}")
    _fill(cursor, section)
    section.end = cursor.last_at
    return section


def _fill(cursor: Cursor, section: Section) -> None:
    if section.key == "layers":
        section.layers = layers(cursor)
    elif section.key in _BLOCKS:
        _braced(cursor, section)
    elif section.key == "optimizer_param":
        section.entries = _loose(cursor)
    else:
        section.values = [value(cursor)]
        while cursor.accept(","):
            if cursor.sees("}") or at_section(cursor):
                break
            section.values.append(value(cursor))


def _braced(cursor: Cursor, section: Section) -> None:
    cursor.expect("{", f"after {section.key}")
    cursor.open()
    while not cursor.sees("}"):
        section.entries += entries(cursor)
        if cursor.accept("@"):
            section.device = device(cursor)
        elif not cursor.sees("}"):
            raise cursor.expected(f"'}}' to close {section.key}")
    cursor.take()
    cursor.close()


def _loose(cursor: Cursor) -> list[Argument]:
    """`optimizer_param: momentum=0.9, nesterov=true`"""
    found: list[Argument] = []
    while cursor.kind() == NAME and cursor.text(1) in ("=", ":") and cursor.text() not in SECTIONS:
        _, name, at = cursor.take()
        cursor.take()
        found.append(Argument(name, value(cursor), at))
        cursor.accept(",")
    if not found:
        raise cursor.expected("a name and its value, as in momentum=0.9")
    return found


def _macro(cursor: Cursor) -> Macro:
    at = cursor.take()[2]
    name = cursor.expect_name("the name of the macro")[1]
    parameters, defaults = _parameters(cursor, name) if cursor.sees("(") else ([], set())
    cursor.expect("{", f"to open macro {name}")
    cursor.open()
    body = layer_items(cursor)
    cursor.expect("}", f"to close macro {name}")
    cursor.close()
    return Macro(name, parameters, defaults, body, at, cursor.last_at)


def _parameters(cursor: Cursor, owner: str) -> tuple[list[Argument], set[str]]:
    parameters: list[Argument] = []
    defaults: set[str] = set()
    for argument in arguments(cursor, owner):
        bare = getattr(argument.value, "text", None) or getattr(argument.value, "name", None)
        if argument.name is not None:
            defaults.add(argument.name)
            parameters.append(argument)
        elif isinstance(bare, str):
            parameters.append(Argument(bare, Literal(None, argument.at), argument.at))
        else:
            raise Unexpected(argument.at, f"a parameter of {owner} must be a name")
    return parameters, defaults


def _research(cursor: Cursor) -> Research:
    at = cursor.take()[2]
    node = Research(cursor.take()[1] if cursor.kind() == NAME else None, [], [], at)
    cursor.expect("{", "to open the research block")
    cursor.open()
    while not cursor.sees("}"):
        key = cursor.expect_name("'metrics' or 'references'")
        cursor.accept(":")
        cursor.expect("{", f"after {key[1]}")
        cursor.open()
        if key[1] == "metrics":
            node.metrics += entries(cursor)
        elif key[1] == "references":
            node.references_at = key[2]
            node.references += _references(cursor)
        else:
            raise Unexpected(key[2], f"expected 'metrics' or 'references', not {key[1]!r}")
        cursor.expect("}", f"to close {key[1]}")
        cursor.close()
    node.end = cursor.take()[2]
    cursor.close()
    return node


def _references(cursor: Cursor) -> list[Argument]:
    """`paper: "url"`, also with the name left out."""
    found: list[Argument] = []
    while not cursor.sees("}") and not cursor.ended:
        if cursor.accept(",", ";", "+"):
            continue
        kind, text, at = cursor.tokens[cursor.index]
        if kind == STRING and cursor.text(1) not in (":", "="):
            cursor.take()
            found.append(Argument("paper", Literal(unquote(text), at), at))
        else:
            found += entries(cursor) if kind in (NAME, STRING) else _refuse(cursor)
    return found


def _refuse(cursor: Cursor) -> list[Argument]:
    raise cursor.expected('a reference, as in paper: "https://..."')
