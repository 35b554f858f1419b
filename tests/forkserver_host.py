"""The warm process behind forkserver.py: reads orders on a socket, forks, reports how children ended."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import io
import json
import multiprocessing.process
import os
import pkgutil
import random
import runpy  # noqa: F401  (spawned children and `-m` use it: cheaper loaded here)
import select
import signal
import socket
import sys
import threading
import types
from importlib.machinery import SourceFileLoader
from typing import Any

PRELOAD = (
    "numpy",
    "torch",
    "torch._dynamo",  # every optimizer loads it when it is made
    "torch._functorch.aot_autograd",
    "torch.distributions",
    "torch.multiprocessing",
    "torch.utils.checkpoint",
    "torch.utils.data",
    "torch.utils.data.datapipes.iter",
    "torch.utils.flop_counter",
)
PR_SET_CHILD_SUBREAPER = 36


def preload() -> list[str]:
    """Imports what programs will want, and every module of ours that imports; returns those that did not."""
    missing = []
    for name in PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    try:
        package = importlib.import_module("neuraldbg")
    except Exception:
        return [*missing, "neuraldbg"]
    for module in pkgutil.walk_packages(package.__path__, "neuraldbg.", onerror=missing.append):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except BaseException:
            missing.append(module.name)
    return missing


class Host:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.children: set[int] = set()
        self.wakeup, wake = socket.socketpair()
        wake.setblocking(False)
        self.wakeup.setblocking(False)
        self.wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno())

    def serve(self) -> dict[str, Any] | None:
        """Answers orders until the other side is gone. In a forked child: returns the order to carry out."""
        buffer = b""
        while True:
            ready = select.select([self.connection, self.wakeup], [], [])[0]
            with contextlib.suppress(BlockingIOError):
                self.wakeup.recv(4096)
            self.reap()
            if self.connection not in ready:
                continue
            chunk = self.connection.recv(65536)
            if not chunk:
                self.kill_all()
                return None
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if order["do"] == "start":
                    if self.fork() == 0:
                        return dict(order)
                elif order["do"] == "kill":
                    self.kill(order)
                else:
                    self.reap()
                    self.say(pids=self.orphans())

    def say(self, **message: Any) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def fork(self) -> int:
        pid = os.fork()
        if pid:
            self.children.add(pid)
            self.say(pid=pid)
            return pid
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for end in (self.connection, self.wakeup, self.wake):
            end.close()
        return 0

    def kill(self, order: dict[str, Any]) -> None:
        pid, send = order["pid"], os.killpg if order["group"] else os.kill
        if pid in self.children or order["group"]:
            with contextlib.suppress(ProcessLookupError):
                send(pid, order["signal"])
        self.say(killed=pid)

    def kill_all(self) -> None:
        for pid in [*self.children, *self.orphans()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.children:
                self.children.discard(pid)
                self.say(ended=pid, status=status)

    def orphans(self) -> list[int]:
        """Descendants whose parent has ended: they were handed to us, the reaper of this tree."""
        with open(f"/proc/self/task/{os.getpid()}/children") as listing:
            return [pid for pid in map(int, listing.read().split()) if pid not in self.children]


def replace_streams(paths: list[str]) -> None:
    """Descriptors 0, 1 and 2 become those files, and sys.stdin, stdout and stderr are made anew over them."""
    for number, path in enumerate(paths):
        flags = os.O_RDWR if path.startswith("/dev/") else os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        buffered = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115  (stays open)
        buffered.raw.name = f"<{name}>"
        stream = io.TextIOWrapper(
            buffered,
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "strict",
            line_buffering=name == "stderr" or os.isatty(number),
        )
        stream.mode = "w" if number else "r"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def become(order: dict[str, Any], base_path: list[str]) -> None:
    """Makes this forked process look like one just started for the order."""
    os.setsid()
    replace_streams(order["streams"])
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    multiprocessing.process.ORIGINAL_DIR = order["cwd"]  # type: ignore[attr-defined]
    extra = [entry for entry in order["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    neural = order["how"] == "neural"
    command = os.path.join(os.path.dirname(sys.executable), "neural")
    sys.argv = [command, *order["args"]] if neural else list(order["args"])
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    first = os.path.dirname(os.path.realpath(sys.argv[0]))
    sys.path[:] = [first, *extra, *[entry for entry in base_path if entry not in extra]]
    sys.path_importer_cache.clear()
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __spec__=None, __annotations__={})
    sys.modules["__main__"] = main


def run_script(path: str) -> None:
    main = sys.modules["__main__"]
    try:
        with open(path, "rb") as script:
            source = script.read()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {os.path.abspath(path)!r}: {why}", file=sys.stderr)
        raise SystemExit(2) from None
    main.__file__ = os.path.abspath(path)
    main.__loader__ = SourceFileLoader("__main__", path)
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def run_neural() -> None:
    importlib.import_module("neuraldbg.surfaces.cli").main()


def exit_code_of(ending: SystemExit) -> int:
    if ending.code is None or isinstance(ending.code, int):
        return (ending.code or 0) & 0xFF
    print(ending.code, file=sys.stderr)
    return 1


def carry_out(order: dict[str, Any]) -> int | None:
    """Runs the program as the interpreter would at top level; its exit code, None for death by SIGINT."""
    try:
        run_neural() if order["how"] == "neural" else run_script(order["args"][0])
    except SystemExit as ending:
        return exit_code_of(ending)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return None if isinstance(error, KeyboardInterrupt) else 1
    return 0


def leave(code: int | None) -> None:
    """The end of a Python process: threads, exit handlers, what __main__ still holds, streams."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    if code is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)


def main() -> None:
    ours = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != ours]
    if importlib.util.find_spec("neuraldbg") is None:
        sys.path.append(os.path.dirname(ours))
    base_path = list(sys.path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests; this process ends with its socket
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    connection = socket.socket(fileno=int(sys.argv[1]))
    missing = preload()
    host = Host(connection)
    host.say(missing=missing, threads=len(os.listdir("/proc/self/task")), pid=os.getpid())
    gc.collect()
    gc.freeze()
    order = host.serve()
    if order is None:
        return
    try:
        become(order, base_path)
        code = carry_out(order)
    except BaseException as error:  # a fault of ours, not of the program
        sys.__excepthook__(type(error), error, error.__traceback__)
        os._exit(125)
    leave(code)


if __name__ == "__main__":
    main()
