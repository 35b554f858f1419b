"""Where the parser stands among the tokens, and how it says what it expected."""

from __future__ import annotations

from neuraldbg.dsl.lexer import END, NAME, Token
from neuraldbg.dsl.problems import Problem, Severity, Source

DEEPEST = 60  # brackets inside brackets
MOST_ERRORS = 50  # after these the rest of the file is not looked at

_OPENING = {"(": ")", "[": "]", "{": "}"}
_CLOSING = frozenset(_OPENING.values())


class Unexpected(Exception):
    """A place that cannot be read; caught where the parser can go on."""

    def __init__(self, at: int, message: str) -> None:
        self.at, self.message = at, message
        super().__init__(message)


class TooDeep(Exception):
    """Brackets nested beyond reason: nothing after it is read."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(f"brackets are nested more than {DEEPEST} deep; this is refused")


class Cursor:
    def __init__(self, source: Source, tokens: list[Token]) -> None:
        self.source = source
        self.tokens = tokens
        self.index = 0
        self.depth = 0
        self.problems: list[Problem] = []

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def at(self) -> int:
        return self.tokens[self.index][2]

    @property
    def last_at(self) -> int:
        """Offset of the token just read."""
        return self.tokens[max(self.index - 1, 0)][2]

    def line_of(self, at: int) -> int:
        return self.source.position(at)[0]

    def text(self, ahead: int = 0) -> str:
        index = self.index + ahead
        return self.tokens[index][1] if index < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        index = self.index + ahead
        return self.tokens[index][0] if index < len(self.tokens) else END

    @property
    def ended(self) -> bool:
        return self.tokens[self.index][0] == END

    def sees(self, *texts: str) -> bool:
        token = self.tokens[self.index]
        return token[1] in texts and token[0] != "string"

    # -- moving ----------------------------------------------------------------------------------------------------

    def take(self) -> Token:
        token = self.tokens[self.index]
        if token[0] != END:
            self.index += 1
        return token

    def accept(self, *texts: str) -> bool:
        if self.sees(*texts):
            self.index += 1
            return True
        return False

    def expect(self, text: str, where: str) -> Token:
        if not self.sees(text):
            raise self.expected(f"{text!r} {where}")
        return self.take()

    def expect_name(self, what: str) -> Token:
        if self.kind() != NAME:
            raise self.expected(what)
        return self.take()

    def open(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooDeep(self.at)

    def close(self) -> None:
        self.depth -= 1

    # -- saying ----------------------------------------------------------------------------------------------------

    def expected(self, what: str) -> Unexpected:
        if self.ended:
            return Unexpected(self.at, f"expected {what}, but the file ends here")
        return Unexpected(self.at, f"expected {what}, not {self.text()[:40]!r}")

    def report(self, error: Unexpected, severity: Severity = Severity.ERROR) -> None:
        self.problems.append(self.source.problem(severity, error.at, error.message))
        if len(self.problems) >= MOST_ERRORS:
            self.index = len(self.tokens) - 1

    def skip(self, *, stop: frozenset[str] = frozenset()) -> None:
        """To the next plausible beginning: a name that starts a line and is followed by one of `( : {` or by another
        such name, at this depth; a closing brace of an outer block; or a word in `stop`."""
        depth, begun = 0, self.index
        while not self.ended:
            text = self.text()
            if self.kind() != "string":
                if text in _OPENING:
                    depth += 1
                elif text in _CLOSING:
                    if text == "}" and depth <= 0:
                        return
                    depth = max(depth - 1, 0)
                elif self.index > begun and self._begins(text, stop) and (depth <= 0 or text in stop):
                    return
            self.index += 1

    def _begins(self, text: str, stop: frozenset[str]) -> bool:
        if self.kind() != NAME:
            return False
        follows = self.text(1)
        if text in stop and follows in (":", "{"):
            return True
        return self._starts_line() and (follows in ("(", ":", "{", "*", "@", "}") or self.kind(1) == NAME)

    def _starts_line(self) -> bool:
        before, here = self.tokens[self.index - 1][2], self.at
        return "\n" in self.source.text[before:here]
