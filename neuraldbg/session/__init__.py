"""NeuralDbg inside a program."""

from __future__ import annotations

from neuraldbg.session.watching import NeuralDbg, watch

__all__ = ["NeuralDbg", "watch"]
