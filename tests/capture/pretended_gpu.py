"""A program that measures tensors on a device that is not there: Triton compiles for it, and nothing is launched.

`python pretended_gpu.py TROUBLE...` measures one type of tensors for each word and prints what became of it: "none",
"in process" (nothing is tried), "patience" (and an interpreter after a colon) or an interpreter to take for our own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from neuraldbg.capture.kernels import apart
from neuraldbg.capture.kernels.device import DevicePass

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.float64, torch.int64)


class Utils:
    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def load_binary(self, *_: Any) -> tuple[int, ...]:
        return (1, 2, 32, 0, 1024)


class Launcher:
    hashes: list[str] = []

    def __init__(self, source: Any, metadata: Any) -> None:
        self._hash = metadata.hash

    def __call__(self, *_: Any) -> None:
        self.hashes.append(self._hash)


class PretendedDriver:
    utils = Utils()
    launcher_cls = Launcher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@triton.jit
def of_the_user(at, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    tl.store(at + tl.arange(0, BLOCK), 0)


class Watched:
    """Children that were started, and for each kernel whether Triton found it in its cache."""

    def __init__(self) -> None:
        self.children = 0
        self.found: list[bool] = []
        self._run_child = apart._run_child
        apart._run_child = self._counted  # type: ignore[assignment]
        knobs.compilation.listener = self._compiled

    def _counted(self, request: str) -> None:
        self.children += 1
        self._run_child(request)

    def _compiled(self, *, cache_hit: bool, **_: Any) -> None:
        self.found.append(cache_hit)

    def told(self) -> dict[str, Any]:
        said = {
            "works": apart._CompileApart.works,
            "children": self.children,
            "found": self.found,
            "hashes": list(Launcher.hashes),
        }
        self.children, self.found = 0, []
        Launcher.hashes.clear()
        return said


def prepare(trouble: str) -> None:
    apart._CompileApart.works = trouble != "in process"
    if trouble.startswith("patience:"):
        apart.PATIENCE_S, trouble = 0.3, trouble.partition(":")[2]  # type: ignore[misc]
    if trouble == "no interpreter":
        sys.executable = None  # type: ignore[assignment]
    elif Path(trouble).is_absolute():
        sys.executable = trouble


def main(troubles: list[str], no_torch: Path) -> None:
    driver.set_active(PretendedDriver())
    (no_torch / "torch.py").write_text("raise SystemExit('the child imports torch')\n", encoding="utf-8")
    sys.path.insert(0, str(no_torch))
    watched, said = Watched(), []
    fused = DevicePass(torch.device("cpu"))
    fused._options = {"num_warps": 4}
    for dtype, trouble in zip(TYPES, troubles, strict=False):
        prepare(trouble)
        fused.measure(torch.zeros(4096, dtype=dtype), 0)
        fused.finish_into(torch.zeros(1, 9, dtype=torch.float64))
        said.append(watched.told())
    apart._CompileApart.works = True
    of_the_user[(1,)](torch.zeros(16), BLOCK=16)
    print(json.dumps({"ours": said, "user": watched.told(), "hook": knobs.runtime.jit_cache_hook is not None}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1:], Path(folder))
