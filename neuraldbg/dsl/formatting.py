"""A `.neural` file written again in one style. Meaning and comments stay; formatting twice changes nothing more."""

from __future__ import annotations

from collections.abc import Sequence

from neuraldbg.dsl import syntax
from neuraldbg.dsl.lexer import Token, quote
from neuraldbg.dsl.parser import read
from neuraldbg.dsl.problems import Source, mistakes
from neuraldbg.errors import DslError

INDENT = "    "


def format_text(text: str, name: str = "<text>") -> str:
    """Raises `DslError` where the file cannot be read."""
    source = Source(text, name)
    tree, comments, problems = read(source)
    if any(problem.severity.fatal for problem in problems):
        raise mistakes(problems, source, DslError)
    return _Writer(source, comments).file(tree)


class _Writer:
    def __init__(self, source: Source, comments: list[Token]) -> None:
        self.text = source.text
        self.comments = comments
        self.next_comment = 0
        self.lines: list[str] = []
        self.depth = 0

    # -- lines and comments ----------------------------------------------------------------------------------------

    def put(self, text: str) -> None:
        self.lines.append(INDENT * self.depth + text if text else "")

    def comments_before(self, offset: int) -> None:
        while self.next_comment < len(self.comments) and self.comments[self.next_comment][2] < offset:
            self.put(self.comments[self.next_comment][1].rstrip())
            self.next_comment += 1

    def comments_behind(self, end: int, following: int) -> None:
        """Comments that stand on the line where a node ends, and belong to it."""
        while self.next_comment < len(self.comments):
            _, text, at = self.comments[self.next_comment]
            if at >= following or "\n" in self.text[end:at]:
                return
            self.lines[-1] += f"  {text.rstrip()}"
            self.next_comment += 1

    # -- the file --------------------------------------------------------------------------------------------------

    def file(self, tree: syntax.File) -> str:
        for number, item in enumerate(tree.items):
            if number:
                self.put("")
            self.comments_before(item.at)
            if isinstance(item, syntax.Macro):
                self.macro(item)
            elif isinstance(item, syntax.NetworkNode):
                self.network(item)
            else:
                self.research(item)
        self.comments_before(len(self.text) + 1)
        return "\n".join(self.lines) + "\n"

    def macro(self, node: syntax.Macro) -> None:
        names = [f"{p.name}={value(p.value)}" if p.name in node.defaults else str(p.name) for p in node.parameters]
        told = f"({', '.join(names)})" if names else ""
        self.put(f"define {node.name}{told} {{")
        self.block(node.body, node.end)

    def block(self, items: Sequence[syntax.Item], end: int, closing: str = "}") -> None:
        self.depth += 1
        self.items(items, end)
        self.comments_before(end)
        self.depth -= 1
        self.put(closing)

    def network(self, node: syntax.NetworkNode) -> None:
        self.put(f"network {node.name} {{")
        self.depth += 1
        for number, section in enumerate(node.sections):
            following = node.sections[number + 1].at if number + 1 < len(node.sections) else node.end
            self.section(section, following)
        self.comments_before(node.end)
        self.depth -= 1
        self.put("}")

    def section(self, section: syntax.Section, following: int) -> None:
        self.comments_before(section.at)
        if section.key == "layers":
            self.put("layers:")
            self.depth += 1
            self.items(section.layers, following)
            self.depth -= 1
        elif section.key in ("train", "execute", "execution", "hpo"):
            self.put(f"{section.key} {{")
            self.depth += 1
            self.entries(section.entries, section.end)
            if section.device is not None:
                self.put(f"@ {quote(section.device)}")
            self.comments_before(section.end)
            self.depth -= 1
            self.put("}")
            self.comments_behind(section.end, following)
        else:
            self.comments_before(section.end)
            told = value_list(section.values) if section.values else arguments(section.entries)
            self.put(f"{section.key}: {told}")
            self.comments_behind(section.end, following)

    def entries(self, entries: Sequence[syntax.Argument], end: int) -> None:
        for number, entry in enumerate(entries):
            following = entries[number + 1].at if number + 1 < len(entries) else end
            self.comments_before(entry.at)
            self.put(f"{_key(str(entry.name))}: {value(entry.value)}")
            self.comments_behind(entry.value.at, following)

    def research(self, node: syntax.Research) -> None:
        self.put(f"research {node.name} {{" if node.name else "research {")
        self.depth += 1
        for key, found in (("metrics", node.metrics), ("references", node.references)):
            if found:
                self.put(f"{key} {{")
                self.depth += 1
                self.entries(found, node.end if key == "references" else node.references_at or node.end)
                self.depth -= 1
                self.put("}")
        self.comments_before(node.end)
        self.depth -= 1
        self.put("}")

    # -- layers ----------------------------------------------------------------------------------------------------

    def items(self, items: Sequence[syntax.Item], end: int) -> None:
        for number, item in enumerate(items):
            following = items[number + 1].at if number + 1 < len(items) else end
            self.comments_before(item.at)
            if isinstance(item, syntax.BranchNode):
                self.put(f"{_key(item.name)}: {{")
                self.block(item.block, item.end)
            else:
                self.layer(item)
            self.comments_behind(item.end, following)

    def layer(self, node: syntax.LayerNode) -> None:
        head = f"{node.type}({arguments(node.arguments)})" if node.parentheses else node.type
        head += f" @ {quote(node.device)}" if node.device is not None else ""
        tail = f" * {value(node.repeat)}" if node.repeat is not None else ""
        if node.block is None:
            self.comments_before(node.end)
            self.put(head + tail)
        else:
            self.put(f"{head} {{")
            self.block(node.block, node.end, "}" + tail)


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else quote(name)


def arguments(found: Sequence[syntax.Argument]) -> str:
    return ", ".join(f"{a.name}={value(a.value)}" if a.name is not None else value(a.value) for a in found)


def value_list(values: Sequence[syntax.Value]) -> str:
    return ", ".join(map(value, values))


def value(node: syntax.Value) -> str:
    """A value as it is written in a file."""
    if isinstance(node, syntax.Literal):
        return _literal(node.value)
    if isinstance(node, syntax.Word):
        return node.text
    if isinstance(node, syntax.Variable):
        return f"${node.name}"
    if isinstance(node, syntax.Sequence):
        inner = value_list(node.items)
        opening, closing = (node.brackets or "()")[:1], (node.brackets or "()")[1:]
        comma = "," if node.brackets == "()" and len(node.items) == 1 else ""
        return f"{opening}{inner}{comma}{closing}"
    if isinstance(node, syntax.Mapping):
        inner = ", ".join(f"{_key(str(a.name))}: {value(a.value)}" for a in node.items)
        return f"{{ {inner} }}" if inner else "{ }"
    if isinstance(node, syntax.Negative):
        return f"-{value(node.operand)}"
    if isinstance(node, syntax.Binary):
        return f"{value(node.left)} {node.operator} {value(node.right)}"
    return f"{node.name}({arguments(node.arguments)})"


def _literal(plain: object) -> str:
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if plain is None:
        return "None"
    return quote(plain) if isinstance(plain, str) else repr(plain)
