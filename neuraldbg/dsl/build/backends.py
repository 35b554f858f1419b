"""What a network can run on, and what has to be installed for it. Imports none of it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from neuraldbg.errors import BackendMissing, nearest

NEEDS: Final = {  # backend -> packages, in the order they are asked for
    "pytorch": ("torch",),
    "tensorflow": ("tensorflow", "keras"),
    "jax": ("jax", "keras"),
    "onnx": ("torch", "onnx", "onnxruntime"),
}
_ALIASES: Final = {"torch": "pytorch", "tf": "tensorflow", "keras": "tensorflow"}
_SHOWN: Final = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras 3",
    "jax": "JAX",
    "onnx": "onnx",
    "onnxruntime": "ONNX Runtime",
}
_EXTRAS: Final = {"pytorch": "torch"}


def backend_of(name: str | None) -> str:
    """The backend a name means."""
    wanted = (name or "pytorch").lower()
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in NEEDS:
        near = nearest(wanted, [*NEEDS], 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(NEEDS)}"
        raise BackendMissing(f"there is no backend {name!r}; {hint}")
    return wanted


def need_backend(name: str | None) -> str:
    """The backend a name means; refused where something it needs is not installed."""
    backend = backend_of(name)
    for package in NEEDS[backend]:
        if find_spec(package) is None:
            extra = _EXTRAS.get(backend, backend)
            also = ",torch" if package == "torch" and backend == "onnx" else ""
            raise BackendMissing(
                f"{_SHOWN[package]} is not installed; install it with: pip install 'neural-debugger[{extra}{also}]'"
            )
    return backend
