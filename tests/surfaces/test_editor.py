"""A line that is being typed, key by key: no terminal is needed for that."""

from __future__ import annotations

import pytest

from neuraldbg.surfaces.terminal.editor import MOST_LINES, LineEditor

LEFT, RIGHT, UP, DOWN, HOME, END, DELETE = "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B", "\x1b[H", "\x1b[F", "\x1b[3~"


def made() -> LineEditor:
    editor = LineEditor("> ")
    editor.words = lambda first: ["break", "continue"] if first else ["layers.0", "layers.1", "output"]
    editor.begin()
    return editor


def typed(editor: LineEditor, keys: str) -> str | None:
    """The line that comes out, at the latest by Enter."""
    for letter in f"{keys}\n":
        line = editor.press(letter)
        if line is not None:
            editor.begin()
            return line
    return None


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("plain", "plain"),
        ("grüße", "grüße"),
        (f"ac{LEFT}b", "abc"),
        (f"bc{HOME}a{END}d", "abcd"),
        (f"abx{LEFT}{DELETE}c", "abc"),
        ("abx\x7fc", "abc"),
        ("wrong\x15right", "right"),
        (f"right wrong{LEFT * 6}\x0b", "right"),
        ("keep this not\x17", "keep this "),
        (f"{LEFT}{RIGHT}{RIGHT}a", "a"),
        ("a\x1b[5~\x1b[24~b", "ab"),  # keys that mean nothing here
        ("a\x00\x0cb", "ab"),
        ("br\t", "break "),
        ("break la\t0", "break layers.0"),
        ("break x\t", "break x"),
    ],
)
def test_keys_make_a_line(keys: str, line: str) -> None:
    assert typed(made(), keys) == line


def test_tab_says_what_a_word_may_become_when_it_cannot_go_on() -> None:
    editor = made()
    for letter in "break la\t":
        editor.press(letter)
    assert editor.offers == []  # went on to what all have in common
    editor.press("\t")
    assert editor.offers == ["layers.0", "layers.1"]
    editor.press("1")
    assert editor.offers == []


def test_lines_of_before_come_back_and_only_so_many_are_kept() -> None:
    editor = made()
    for at in range(MOST_LINES + 5):
        typed(editor, f"line {at}")
    assert typed(editor, UP) == f"line {MOST_LINES + 4}"
    assert typed(editor, UP + UP + DOWN) == f"line {MOST_LINES + 4}"
    assert typed(editor, UP * 1000) == "line 5"
    assert typed(editor, UP + DOWN) == ""


def test_a_line_that_is_typed_waits_while_older_ones_are_looked_at() -> None:
    editor = made()
    typed(editor, "b fc")
    assert typed(editor, f"p los{UP}{DOWN}s") == "p loss"


OLDER, GIVE_UP = "\x12", "\x07"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (f"{OLDER}loss", "p loss.item()"),
        (f"{OLDER}loss{OLDER}", "b fc if loss > 2"),
        (f"{OLDER}loss{OLDER * 9}", "b fc if loss > 2"),  # there is no older one
        (f"{OLDER}lossy\x7f", "p loss.item()"),
        (f"{OLDER}fc{LEFT}{HOME}{DELETE}d", "d fc if loss > 2"),  # an arrow takes the line, to be changed
        (f"half{OLDER}loss{GIVE_UP} typed", "half typed"),
        (f"{OLDER}nowhere", ""),
    ],
)
def test_a_line_of_before_is_found_by_a_part_of_it(keys: str, line: str) -> None:
    editor = made()
    for before in ("b fc if loss > 2", "v", "p loss.item()", "t output"):
        typed(editor, before)
    assert typed(editor, keys) == line


def test_a_search_says_what_it_looks_for() -> None:
    editor = made()
    typed(editor, "p loss")
    for letter in f"{OLDER}lo":
        editor.press(letter)
    assert editor.picture(60) == "\r(line with 'lo') p loss\x1b[K"
    editor.press("x")
    assert editor.picture(60).startswith("\r(no line with 'lox') ")


def test_the_end_of_input_is_one_only_on_an_empty_line() -> None:
    editor = made()
    with pytest.raises(EOFError):
        editor.press("\x04")
    assert typed(editor, f"abx{LEFT}\x04") == "ab"


def test_a_line_longer_than_the_terminal_shows_where_the_cursor_is() -> None:
    editor = made()
    for letter in "0123456789" * 5:
        editor.press(letter)
    assert editor.picture(23) == "\r> " + "01234567890123456789" + "\x1b[K"
    editor.press("\x01")
    assert editor.picture(23) == "\r> " + "01234567890123456789" + "\x1b[K\x1b[20D"
