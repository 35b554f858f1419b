"""A line that is being typed: keys go in one by one, a whole line comes out. It never waits, so whoever owns it can do
other things between two keys, which the line editor behind `input()` cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MOST_LINES = 200  # that are remembered
ESCAPE = "\x1b"
SEQUENCES = {
    "[A": "up", "OA": "up", "[B": "down", "OB": "down", "[C": "right", "OC": "right", "[D": "left", "OD": "left",
    "[H": "home", "OH": "home", "[1~": "home", "[F": "end", "OF": "end", "[4~": "end", "[3~": "delete",
}  # fmt: skip
CONTROLS = {
    "\x01": "home", "\x02": "left", "\x04": "end of input", "\x05": "end", "\x06": "right", "\x08": "backspace",
    "\t": "complete", "\n": "enter", "\x0b": "cut after", "\r": "enter", "\x0e": "down", "\x10": "up",
    "\x15": "cut before", "\x17": "cut word", "\x7f": "backspace", "\x12": "search", "\x07": "give up",
}  # fmt: skip


class LineEditor:
    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.words: Callable[[bool], Sequence[str]] = lambda _: ()  # for Tab; True: the first of a line
        self._lines: list[str] = []
        self._line_at = 0
        self._text, self._at = "", 0
        self._draft = ""  # what was typed before a remembered line took its place
        self._sought: str | None = None  # what Ctrl-R looks for among the lines of before
        self._missed = False  # none of them has it
        self._sequence = ""  # of an escape that is not whole yet
        self._acts: dict[str, Callable[[], None]] = {
            "left": lambda: self._move(self._at - 1),
            "right": lambda: self._move(self._at + 1),
            "home": lambda: self._move(0),
            "end": lambda: self._move(len(self._text)),
            "backspace": lambda: self._cut(self._at - 1, self._at),
            "delete": lambda: self._cut(self._at, self._at + 1),
            "cut before": lambda: self._cut(0, self._at),
            "cut after": lambda: self._cut(self._at, len(self._text)),
            "cut word": lambda: self._cut(self._text[: self._at].rstrip().rfind(" ") + 1, self._at),
            "up": lambda: self._remember(-1),
            "down": lambda: self._remember(1),
            "search": self._search,
        }
        self.offers: list[str] = []  # what the last Tab could have meant

    def begin(self) -> None:
        self._text, self._at, self._sequence, self._line_at = "", 0, "", len(self._lines)
        self._draft, self._sought, self._missed = "", None, False

    def press(self, letter: str) -> str | None:
        """The line, once it is whole. EOFError where somebody says that no more will come."""
        self.offers = []
        key = self._key(letter)
        if self._sought is not None and self._searching(self._sought, key, letter):
            return None
        if key == "enter":
            if self._text.strip() and self._lines[-1:] != [self._text]:
                self._lines = [*self._lines, self._text][-MOST_LINES:]
            return self._text
        if key == "end of input" and not self._text:
            raise EOFError
        if key == "complete":
            self._offer()
        elif key is not None:
            self._acts.get("delete" if key == "end of input" else key, lambda: None)()
        elif not self._sequence and letter.isprintable():
            self._insert(letter)
        return None

    def _key(self, letter: str) -> str | None:
        """The name of a key that is no letter; `""` while an escape is not whole, or means nothing here."""
        if letter == ESCAPE or self._sequence:
            self._sequence = letter if letter == ESCAPE else self._sequence + letter
            body = self._sequence[1:]
            if body in ("", "[", "O") or (body[:1] == "[" and not "@" <= letter <= "~"):
                return ""
            self._sequence = ""
            return SEQUENCES.get(body, "")
        return CONTROLS.get(letter)

    def picture(self, columns: int) -> str:
        """What to write to a terminal that wide: the line, cut to what fits, and the cursor in its place."""
        prompt = self.prompt
        if self._sought is not None:
            prompt = f"({'no ' if self._missed else ''}line with {self._sought!r}) "
        room = max(columns - len(prompt) - 1, 8)
        first = max(0, self._at - room)
        shown = self._text[first : first + room]
        back = len(shown) - (self._at - first)
        return f"\r{prompt}{shown}\x1b[K" + (f"\x1b[{back}D" if back else "")

    def _insert(self, text: str) -> None:
        self._text = self._text[: self._at] + text + self._text[self._at :]
        self._at += len(text)

    def _move(self, to: int) -> None:
        self._at = max(0, min(to, len(self._text)))

    def _cut(self, start: int, end: int) -> None:
        start = max(0, start)
        self._text, self._at = self._text[:start] + self._text[end:], start

    def _remember(self, by: int) -> None:
        if self._line_at == len(self._lines):
            self._draft = self._text
        self._show(max(0, min(self._line_at + by, len(self._lines))))

    def _show(self, line_at: int) -> None:
        self._line_at = line_at
        self._text = self._lines[line_at] if line_at < len(self._lines) else self._draft
        self._at = len(self._text)

    def _search(self) -> None:
        if self._line_at == len(self._lines):
            self._draft = self._text
        self._sought, self._missed, self._line_at = "", False, len(self._lines)

    def _searching(self, sought: str, key: str | None, letter: str) -> bool:
        """Whether a key was one of the search: more to look for, an older line, back to what was typed. Any other takes
        the line that was found, and then means what it always does."""
        if key == "search":
            self._seek(sought, self._line_at)
        elif key == "backspace":
            self._seek(sought[:-1], len(self._lines))
        elif key is None and letter.isprintable():
            self._seek(sought + letter, self._line_at + 1)
        elif key == "give up":
            self._sought = None
            self._show(len(self._lines))
        elif key != "":
            self._sought = None
            return False
        return True

    def _seek(self, text: str, before: int) -> None:
        """The newest line before that one which has the text; without any the one shown stays."""
        older = range(min(before, len(self._lines)) - 1, -1, -1)
        at = next((each for each in older if text in self._lines[each]), None)
        self._sought, self._missed = text, at is None
        if at is not None:
            self._show(at)

    def _offer(self) -> None:
        start = self._text.rfind(" ", 0, self._at) + 1
        word = self._text[start : self._at]
        found = list(dict.fromkeys(each for each in self.words(not start) if each.startswith(word)))
        if len(found) == 1:
            self._insert(found[0][len(word) :] + " ")
        elif found:
            least, most = min(found), max(found)
            same = next((at for at, letter in enumerate(least) if most[at : at + 1] != letter), len(least))
            self._insert(least[len(word) : same])
            self.offers = found if same == len(word) else []
