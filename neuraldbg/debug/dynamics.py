"""How a training goes: the words and findings of `neuraldbg.analysis.dynamics`."""

from __future__ import annotations

from neuraldbg.analysis.dynamics import ConvergenceStatus, Plateau, TrainingDynamics, TrainingStability

__all__ = ["ConvergenceStatus", "Plateau", "TrainingDynamics", "TrainingStability"]
