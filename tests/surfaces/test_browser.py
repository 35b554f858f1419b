"""The page is opened in the user's browser, once, where somebody sits at a terminal before a screen."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import AS_SCRIPT, environment, neural

from neuraldbg.surfaces.browser import has_a_screen

pty = pytest.importorskip("pty")
PATIENCE_S = 90
BROWSER = """#!/bin/sh
case "$1" in file://*) ls -l "${1#file://}" > rights; cp "${1#file://}" sent;; esac
echo "$@" >> opened
echo chatter of a browser
echo more chatter >&2
(echo chatter at the terminal > /dev/tty) 2> /dev/null
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "browser").write_text(BROWSER)
    (tmp_path / "browser").chmod(0o755)
    return tmp_path


def at_a_terminal(place: Path, *words: str, **changes: str) -> str:
    """What is seen there until the page stays; then Ctrl-C."""
    ours, theirs = pty.openpty()
    variables = environment(BROWSER=f"{place / 'browser'} %s", TERM="xterm", **changes)
    process = subprocess.Popen(
        [sys.executable, "-c", AS_SCRIPT, "debug", "--port", "0", *words, "train.py"],
        cwd=place, env=variables, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=_own_terminal,
    )  # fmt: skip
    os.close(theirs)
    seen, until, asked = "", time.monotonic() + PATIENCE_S, False
    try:
        while process.poll() is None and time.monotonic() < until:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                seen += os.read(ours, 65536).decode(errors="replace")
            except OSError:
                break
            if "until Ctrl-C" in seen and not asked:
                asked = True
                _give_it_time(place)
                os.write(ours, b"\x03")
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return seen


def _give_it_time(place: Path) -> None:
    """To a browser that is on its way, or that must not come: as long as starting Python takes, several times."""
    for _ in range(30):
        subprocess.run([sys.executable, "-c", ""], check=True)
        if (place / "opened").exists():
            return


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_it_is_opened_once_and_says_nothing_at_the_terminal(place: Path) -> None:
    seen = at_a_terminal(place, DISPLAY=":7")
    opened = (place / "opened").read_text().split()
    assert len(opened) == 1
    assert opened[0].startswith("http://127.0.0.1:")
    assert f"serving on {opened[0]}" in seen
    assert "trained" in seen
    assert "chatter" not in seen


def test_a_token_is_in_no_command_that_others_could_read(place: Path) -> None:
    seen = at_a_terminal(place, "--host", "0.0.0.0", DISPLAY=":7")
    token = re.search(r"\?token=([\w-]{20,})", seen)
    assert token is not None
    opened = (place / "opened").read_text().split()
    assert len(opened) == 1
    assert opened[0].startswith("file://")
    assert token[1] not in opened[0]
    assert f"?token={token[1]}" in (place / "sent").read_text()
    assert (place / "rights").read_text().startswith("-rw-------")
    assert not Path(opened[0].removeprefix("file://")).exists()  # gone with the server


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["--no-browser"], {"DISPLAY": ":7"}),
        ([], {"DISPLAY": ":7", "NEURALDBG_DASHBOARD__BROWSER": "false"}),
        ([], {}),
    ],
    ids=["flag", "configuration", "no screen"],
)
def test_it_stays_closed(place: Path, words: list[str], changes: dict[str, str]) -> None:
    assert "until Ctrl-C" in at_a_terminal(place, *words, **changes)
    assert not (place / "opened").exists()


def test_without_a_terminal_nothing_is_opened(place: Path) -> None:
    done = neural("debug", "--port", "0", "train.py", cwd=place, DISPLAY=":7", BROWSER=f"{place / 'browser'} %s")
    assert done.returncode == 0
    assert not (place / "opened").exists()


@pytest.mark.parametrize(
    ("variables", "platform", "has"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"SSH_CONNECTION": "1", "DISPLAY": "localhost:10"}, "linux", True),
        ({}, "darwin", True),
        ({}, "win32", True),
        ({"SSH_CONNECTION": "1"}, "darwin", False),
        ({"SSH_TTY": "/dev/ttys1"}, "darwin", False),
    ],
)
def test_where_a_browser_would_be_seen(variables: dict[str, str], platform: str, has: bool) -> None:
    assert has_a_screen(variables, platform) is has
