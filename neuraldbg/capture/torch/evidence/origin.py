"""The watcher that finds the first NaN."""

from __future__ import annotations

from neuraldbg.capture.torch.origin.watch import OriginWatch

__all__ = ["OriginWatch"]
