"""Triton's compiler in a process of its own: where it has run once, 55 MB of it stay.

A kernel that Triton's cache on disk does not have is compiled into it by a child, and Triton finds it there. Whatever
goes wrong, Triton compiles it in this process, as it would without us. The child imports no torch and sees no device.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from neuraldbg.capture.guard import attempt_or_why

log = logging.getLogger("neuraldbg")
PATIENCE_S: Final = 30.0


def compile_apart(kernel: Any) -> None:
    """From now on, this kernel alone: nothing that other kernels see is changed. One of Triton's interpreter, or of a
    Triton that works otherwise, stays as it is."""
    compile_now = getattr(kernel, "_do_compile", None)
    if compile_now is None:
        return

    def do_compile(*args: Any, **named: Any) -> Any:
        plain = getattr(kernel, "compile", None)  # set anew with each device
        if plain is not None and not isinstance(plain, _CompileApart):
            kernel.compile = _CompileApart(plain)
        return compile_now(*args, **named)

    kernel._do_compile = do_compile


class _CompileApart:
    """`triton.compile`, which has nothing left to do but to read its cache."""

    works = True  # of all of them: what failed once is not waited for again

    def __init__(self, plain: Callable[..., Any]) -> None:
        self._plain = plain

    def __call__(self, source: Any, *args: Any, **named: Any) -> Any:
        if _CompileApart.works:
            done, why = attempt_or_why(lambda: _in_cache_now(source, named["target"], named["options"]))
            if not done:
                _CompileApart.works = False
                log.debug("kernels are compiled in this process: %s", why or "a child's are not found")
        return self._plain(source, *args, **named)


def _in_cache_now(source: Any, target: Any, options: dict[str, Any]) -> bool:
    if _in_cache(source, target, options):
        return True
    _run_child(_request(source, target, options))
    return _in_cache(source, target, options)


def _in_cache(source: Any, target: Any, options: dict[str, Any]) -> bool:
    """Looks where `triton.compile` does."""
    from triton import knobs
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import get_cache_key, get_cache_manager

    if knobs.compilation.always_compile:
        raise RuntimeError("Triton is told not to use its cache")
    backend = make_backend(target)
    key = get_cache_key(source, backend, backend.parse_options(dict(options)), get_cache_invalidating_env_vars())
    file = f"{source.name[:150]}.json"
    group = get_cache_manager(sha256(key.encode()).hexdigest()).get_group(file)
    return file in (group or {})


def _request(source: Any, target: Any, options: dict[str, Any]) -> str:
    """All that the key of the cache is made of, as text; raises where text does not hold it."""
    from triton.runtime.cache import triton_key

    told = {
        "triton": triton_key(),
        "kernel": source.fn.__name__,
        "signature": source.signature,
        "constants": source.constants,
        "attrs": source.attrs,
        "target": (target.backend, target.arch, target.warp_size),
        "options": dict(options),
    }
    if literal_eval(repr(told)) != told:
        raise ValueError("not told in full")
    return repr(told)


def _run_child(request: str) -> None:
    """Waits for it; no lock is held. It runs no startup code of this environment (`-S`), which may be anybody's."""
    from triton import knobs

    program = sys.executable or ""
    if getattr(sys, "frozen", False) or not Path(program).name.startswith("python"):
        raise RuntimeError(f"{program or 'nothing'} is no interpreter to start")  # it could be the user's program
    search = [entry for entry in sys.path if isinstance(entry, str)]
    search.append(str(Path(__file__).resolve().parents[3]))
    code = f"import sys; sys.path[:] = {search!r}; from neuraldbg.capture.kernels.apart import main; main()"
    done = subprocess.run(
        [program, "-S", "-c", code],
        input=request,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TRITON_CACHE_DIR": knobs.cache.dir, "CUDA_VISIBLE_DEVICES": ""},
        encoding="utf-8",
        errors="replace",
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the child ended with {done.returncode}: {done.stderr[-500:]}")


def main() -> None:
    """The child: what it shall compile is on its stdin."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime import cache

    from neuraldbg.capture.kernels import triton_pass

    told = literal_eval(sys.stdin.read())
    cache.triton_key = lambda: told["triton"]  # hashes 400 MB: what the parent found serves both
    kernel = getattr(triton_pass, told["kernel"])
    source = ASTSource(kernel, told["signature"], told["constants"], told["attrs"])
    triton.compile(source, target=GPUTarget(*told["target"]), options=told["options"])
