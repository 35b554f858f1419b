"""What every test gets: one thread per process, a warm fork server on request, a check that nothing is left behind."""

# ruff: noqa: E402  (the environment must be set before anything loads a numeric library)

from __future__ import annotations

import os
import sys

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # bf16 kernels crash on some virtual CPUs without it
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
for _variable in ("DISPLAY", "WAYLAND_DISPLAY"):
    os.environ.pop(_variable, None)  # no test opens a browser on the screen of who runs it

from collections.abc import Iterator

import hypothesis
import pytest
from forkserver import ForkServer
from leftovers import Leftovers

hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="session")
def torch_server() -> Iterator[ForkServer]:
    """Runs programs in children of a process that has torch loaded: `.python(...)`, `.neural(...)`, `.start(...)`."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def steps_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine: of long ones fewer are looked at closely, and tests of what is seen would see less."""
    core = sys.modules.get("neuraldbg.capture.torch.core")
    if core is not None:
        monkeypatch.setattr(core, "LONG_STEP_NS", 10**18)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves hooks, patches, threads, ports, processes or files."""
    before = Leftovers.now()
    yield
    found = before.compare(Leftovers.now)
    if found:
        pytest.fail("left behind: " + "; ".join(found), pytrace=False)
