"""Repeatable kernels: what makes the same step on CUDA give the same bits again. Asked for by the user, and slower."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from contextlib import ExitStack
from typing import Any, Final

WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
FIXED: Final = ":4096:8"


def fix_workspace(environment: MutableMapping[str, str] = os.environ) -> None:
    """Of cuBLAS, which reads it when CUDA starts. What the user has set stays."""
    environment.setdefault(WORKSPACE, FIXED)


class Repeatable:
    """From now until `close`. An operation that has no repeatable form then says so: torch raises in the script."""

    def __init__(self) -> None:
        import torch

        self._passed = False
        self._undo = ExitStack()
        cudnn = torch.backends.cudnn
        self._undo.callback(
            torch.use_deterministic_algorithms,
            torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        for name, value in (("deterministic", True), ("benchmark", False)):
            self._undo.callback(setattr, cudnn, name, getattr(cudnn, name))
            setattr(cudnn, name, value)
        torch.use_deterministic_algorithms(True)

    def before_pass(self, *_: Any) -> None:
        """Once: many scripts switch `benchmark` on at their top, which may take another algorithm each time."""
        if not self._passed:
            self._passed = True
            sys.modules["torch"].backends.cudnn.benchmark = False

    def close(self) -> None:
        self._undo.close()
