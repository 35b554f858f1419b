"""`neural debug script.py` is `python script.py`: what the script sees, says and returns is the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forkserver import ForkServer, Result
from programs.truth import FOLDER

BAD = FOLDER / "bad"
Script = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Writes a script into the working directory of the run; its name is `train.py`."""

    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def both(torch_server: ForkServer, tmp_path: Path) -> Callable[..., tuple[Result, Result]]:
    """Runs a command line under a fresh Python and under `neural debug`, both in the same folder."""

    def run(*command: str, stdin: bytes = b"", **environment: str) -> tuple[Result, Result]:
        changed = {**os.environ, **environment}
        fresh = subprocess.run(
            [sys.executable, *command], capture_output=True, cwd=tmp_path, input=stdin, env=changed, check=False
        )
        runs = str(tmp_path.parent / f"{tmp_path.name}-run")
        debugged = torch_server.neural(
            "debug", "--headless", "--out", runs, *command, cwd=tmp_path, stdin=stdin, env=environment
        )
        return Result(fresh.returncode, fresh.stdout, fresh.stderr), debugged

    return run


def said(result: Result) -> str:
    """Standard error up to our report."""
    return result.stderr.partition("Verdict  ")[0]


def test_the_script_sees_the_same_world(both: Any) -> None:
    """argv, __file__, __name__, sys.path[0], cwd, stdin, the environment, and pickling of its own classes."""
    plain, debugged = both(str(BAD / "prints_argv.py"), "--lr", "0.1", "-x", "a b", stdin=b"typed\n", MARKER="set")
    assert debugged.out == plain.out
    assert b"typed" in plain.out
    assert (debugged.code, said(debugged)) == (plain.code, plain.stderr)


@pytest.mark.parametrize("name", ["train.py", "./train.py", "sub/../train.py", "link.py"])
def test_a_relative_script_knows_where_it_is(both: Any, script: Script, tmp_path: Path, name: str) -> None:
    script("import sys; print(__file__, sys.argv, sys.path[0], __spec__, __package__, __cached__)\n1 / 0\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.py").symlink_to("train.py")
    plain, debugged = both(name, "one")
    assert debugged.stdout == plain.stdout
    assert said(debugged) == plain.stderr


def test_the_environment_is_untouched(both: Any, script: Script) -> None:
    script("import os; print(sorted(os.environ.items()))\n")
    plain, debugged = both("train.py")
    assert debugged.stdout == plain.stdout


def test_modules_beside_the_script_are_found_and_ours_do_not_hide_them(
    both: Any, script: Script, tmp_path: Path
) -> None:
    for name in ("config", "session", "launch", "trace", "records"):
        (tmp_path / f"{name}.py").write_text(f"print('the user\\'s own {name}')\n")
    script("import config, session, launch, trace, records\n")
    plain, debugged = both("train.py")
    assert debugged.stdout == plain.stdout
    assert said(debugged) == plain.stderr == ""


ENDINGS = {
    "sys.exit(3)": 3,
    "sys.exit('no data')": 1,
    "sys.exit(None)": 0,
    "sys.exit()": 0,
    "sys.exit(-1)": 255,
    "sys.exit(256)": 0,
    "sys.exit(True)": 1,
    "sys.exit(2.5)": 1,
    "sys.exit([])": 1,
    "raise SystemExit(4)": 4,
    "exit(6)": 6,
    "os._exit(5)": 5,
    "1 / 0": 1,
    "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])": 1,
    "os.kill(os.getpid(), 9)": -9,
    "os.kill(os.getpid(), 15)": -15,
    "os.abort()": -6,
    "": 0,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_exit_code_is_the_scripts_own(both: Any, script: Script, ending: str) -> None:
    if "ExceptionGroup" in ending and sys.version_info < (3, 11):
        return
    path = script(
        f"import os, sys, atexit\natexit.register(print, 'at exit')\nprint('running', flush=True)\n{ending}\n"
    )
    plain, debugged = both(str(path))
    assert debugged.code == plain.code == ENDINGS[ending]
    assert debugged.stdout == plain.stdout
    assert said(debugged).replace("\n\n", "\n") == plain.stderr.replace("\n\n", "\n")


def test_an_interrupt_kills_by_sigint_so_that_shells_understand(both: Any, script: Script) -> None:
    path = script("def deep():\n    raise KeyboardInterrupt\ndeep()\n")
    plain, debugged = both(str(path))
    assert debugged.code == plain.code == -signal.SIGINT
    assert said(debugged) == plain.stderr


TROUBLE = {
    "an error deep inside": "def a(): b()\ndef b(): {}['key']\na()\n",
    "a chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('bad') from e\n",
    "an error while handling": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    open('absent')\n",
    "a syntax error": "print('never')\ndef f(:\n    pass\n",
    "an indentation error": "if True:\nprint(1)\n",
    "a tab error": "if True:\n        x = 1\n\ty = 2\n",
    "a syntax error in an import": "open('other.py', 'w').write('def x(:')\nimport other\n",
    "an error in an import": "open('other.py', 'w').write('1 / 0')\nimport other\n",
    "an exception class of its own": "class Mine(Exception):\n    def __str__(self): return 'a\\nb'\nraise Mine\n",
    "an error in a generator": "def g():\n    yield 1\n    raise ValueError('x')\nlist(g())\n",
    "an excepthook of its own": "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\n1 / 0\n",
    "an excepthook that fails": "import sys\nsys.excepthook = lambda *a: 2 / 0\nint('x')\n",
    "an error in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()\n",
    "a recursion": "def f(): f()\nf()\n",
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_errors_read_exactly_as_pythons(both: Any, script: Script, trouble: str) -> None:
    """The same text to the letter: no frame of ours, the same file names, the same carets."""
    plain, debugged = both(str(script(TROUBLE[trouble])))
    times = re.compile(r"repeated \d+ more times")  # a few frames of the stack are ours
    assert times.sub("", said(debugged)).rstrip() == times.sub("", plain.stderr).rstrip()
    assert debugged.code == plain.code
    assert debugged.stdout == plain.stdout


@pytest.mark.parametrize(
    "source",
    [b"# -*- coding: latin-1 -*-\nprint('caf\xe9')\n", b"\xef\xbb\xbfprint('BOM')\n", b"print(1)\r\nprint(2)\r\n", b"",
     b"from __future__ import annotations\ndef f(x: undefined): pass\nprint(f.__annotations__)\n",
     b"def f(x: int): pass\nprint(f.__annotations__)\nprint(__annotations__, __doc__)\n"],
    ids=["latin-1", "bom", "crlf", "empty", "future annotations", "no future annotations"],
)  # fmt: skip
def test_source_files_are_read_as_python_reads_them(both: Any, tmp_path: Path, source: bytes) -> None:
    (tmp_path / "train.py").write_bytes(source)
    plain, debugged = both("train.py")
    assert (debugged.code, debugged.out, said(debugged)) == (0, plain.out, plain.stderr)


@pytest.mark.parametrize(
    "source", [b"print('caf\xe9')\n", b"print('x')\0\n"], ids=["latin-1 undeclared", "a null byte"]
)
def test_bytes_that_are_no_source_are_an_error_of_the_script(both: Any, tmp_path: Path, source: bytes) -> None:
    """Python words these errors by its own file reader; what matters is that no frame of ours shows."""
    (tmp_path / "train.py").write_bytes(source)
    plain, debugged = both(str(tmp_path / "train.py"))
    assert (debugged.code, debugged.out) == (plain.code, plain.out) == (1, b"")
    assert "neuraldbg" not in said(debugged)
    assert "Error" in said(debugged).splitlines()[-1]


def test_threads_exit_handlers_and_streams_end_in_the_same_order(both: Any, script: Script) -> None:
    script(
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'at exit')\n"
        "class Last:\n    def __del__(self): print('deleted')\n"
        "last = Last()\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
        "sys.stdout.write('no newline')\n"
    )
    plain, debugged = both("train.py")
    assert debugged.out == plain.out


def test_what_the_script_prints_as_bytes_is_the_same(both: Any, script: Script) -> None:
    script("import sys\nsys.stdout.buffer.write(bytes(range(256)))\nprint('\\u00e9', end='')\n")
    plain, debugged = both("train.py")
    assert debugged.out == plain.out


# -- modules -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "sizes.py").write_text("WIDTH = 7\n")
    (folder / "train.py").write_text(
        "import sys\nfrom . import sizes\nfrom pkg.sizes import WIDTH\n"
        "print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0], sizes.WIDTH, WIDTH)\n"
        "print(sys.modules['__main__'].__dict__ is globals())\n"
    )
    (folder / "__main__.py").write_text("import sys\nprint(__name__, __package__, sys.argv)\nsys.exit(9)\n")
    return folder


@pytest.mark.parametrize(("name", "code"), [("pkg.train", 0), ("pkg", 9)])
def test_a_module_runs_as_with_python_m(both: Any, package: Path, name: str, code: int) -> None:
    plain, debugged = both("-m", name, "--lr", "1")
    assert debugged.stdout == plain.stdout
    assert debugged.code == plain.code == code


@pytest.mark.parametrize("name", ["nowhere", "pkg.nowhere", "pkg.sizes.deeper", "pkg..train"])
def test_a_module_that_is_not_there_is_one_line_and_exit_code_2(
    torch_server: ForkServer, package: Path, tmp_path: Path, name: str
) -> None:
    result = torch_server.neural("debug", "--headless", "-m", name, cwd=tmp_path)
    assert result.code == 2
    assert len(result.stderr.splitlines()) == 1
    assert name in result.stderr


# -- what cannot be run ------------------------------------------------------------------------------------------------


def one_line(result: Result) -> str:
    [line] = result.stderr.splitlines()
    assert result.out == b""
    return line


def test_a_missing_script_is_named_with_the_nearest(torch_server: ForkServer, script: Script, tmp_path: Path) -> None:
    script("")
    result = torch_server.neural("debug", "--headless", "trian.py", cwd=tmp_path)
    assert result.code == 2
    assert "trian.py" in one_line(result)
    assert "did you mean 'train.py'?" in one_line(result)
    assert sorted(os.listdir(tmp_path)) == ["train.py"], "nothing is recorded"


def test_a_missing_script_in_another_folder_is_named_with_the_nearest(
    torch_server: ForkServer, script: Script, tmp_path: Path
) -> None:
    script("")
    (tmp_path / "here").mkdir()
    result = torch_server.neural("debug", "--headless", "../trian.py", cwd=tmp_path / "here")
    assert "did you mean '../train.py'?" in one_line(result)


def test_a_directory_without_a_main_is_one_line(torch_server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    result = torch_server.neural("debug", "--headless", "folder", cwd=tmp_path)
    assert result.code == 2
    assert "directory without __main__.py" in one_line(result)


def test_a_directory_with_a_main_runs_as_under_python(both: Any, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "part.py").write_text("NAME = 'part'\n")
    (folder / "__main__.py").write_text("import sys, part\nprint(__name__, sys.argv, sys.path[0], part.NAME)\n")
    plain, debugged = both("app", "x")
    assert (debugged.code, debugged.stdout) == (0, plain.stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving up root needs root")
def test_an_unreadable_file_is_one_line(torch_server: ForkServer, script: Script) -> None:
    """Root may read everything, so the question is asked as nobody."""
    path = script(
        "import os\nfrom neuraldbg.errors import ScriptNotFound\nfrom neuraldbg.script import load_script\n"
        "open('/tmp/unreadable-here.py', 'w').close()\nos.chmod('/tmp/unreadable-here.py', 0)\n"
        "os.setuid(65534)\n"
        "try:\n    load_script('/tmp/unreadable-here.py', ())\nexcept ScriptNotFound as error:\n    print(error)\n"
    )
    try:
        assert torch_server.python(path).stdout.endswith("no permission to read it\n")
    finally:
        Path("/tmp/unreadable-here.py").unlink(missing_ok=True)
