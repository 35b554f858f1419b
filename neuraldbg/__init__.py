"""NeuralDbg: the debugger for neural-network training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuraldbg.analysis.anomalies import AnomalyDetector
    from neuraldbg.session import NeuralDbg, watch
    from neuraldbg.trace import Trace, open_trace

__all__ = ["AnomalyDetector", "NeuralDbg", "Trace", "open_trace", "watch"]

_HOMES = {
    "AnomalyDetector": "neuraldbg.analysis.anomalies",
    "NeuralDbg": "neuraldbg.session",
    "Trace": "neuraldbg.trace",
    "open_trace": "neuraldbg.trace",
    "watch": "neuraldbg.session",
}


def __getattr__(name: str) -> Any:
    """Public names are fetched when first used: importing the package does nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'neuraldbg' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    if _HOMES[name] == "neuraldbg.session":
        import_module("neuraldbg.session.watching").find_prompt = _prompt  # type: ignore[attr-defined]
    globals()[name] = value
    return value


def _prompt() -> Any:
    """Somebody at this terminal, if there is one: a session may not import surfaces itself."""
    from neuraldbg.surfaces.terminal.prompt import TerminalPrompt, can_prompt

    return TerminalPrompt() if can_prompt() else None


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
