"""Parts of the C extension that stand in for Python code of every step, without a frame; None where it was not built.

Each has its twin in Python where it is used.
"""

from __future__ import annotations

from typing import Any, Final

_fused: Any = None
try:
    from neuraldbg.capture.kernels import _fused
except ImportError:  # built without a compiler
    pass

Rows: Final[Any] = getattr(_fused, "Rows", None)  # calls, scalars and lines of capture/torch/recorder.py
Identities: Final[Any] = getattr(_fused, "Identities", None)  # what capture/identity.py looks up and puts in
Fetches: Final[Any] = getattr(_fused, "Fetches", None)  # capture/torch/evidence/waiting.py
Reader: Final[Any] = getattr(_fused, "Reader", None)  # capture/kernels/host.py
hang: Final[Any] = getattr(_fused, "hang", None)  # `Tensor.register_hook` on what is no leaf
keep: Final[Any] = getattr(_fused, "keep", None)  # capture/torch/earlier.py
mark: Final[Any] = getattr(_fused, "mark", None)  # capture/torch/recording/marks.py, as the next
as_marked: Final[Any] = getattr(_fused, "as_marked", None)
surroundings: Final[Any] = getattr(_fused, "surroundings", None)  # capture/torch/structures.py
instances_of: Final[Any] = getattr(_fused, "instances_of", None)  # capture/living.py
shield: Final[Any] = getattr(_fused, "shield", None)  # capture/guard.py, as the next
tell: Final[Any] = getattr(_fused, "tell", None)
modules_in: Final[Any] = getattr(_fused, "modules_in", None)  # capture/torch/members.py, as the next
named_modules_in: Final[Any] = getattr(_fused, "named_modules_in", None)
held_in: Final[Any] = getattr(_fused, "held_in", None)
usual: Final[Any] = getattr(_fused, "usual", None)
