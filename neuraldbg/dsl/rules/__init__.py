"""What each layer makes of a shape. Importing this package fills the table of rules."""

from __future__ import annotations

from neuraldbg.dsl.rules import attention, convolution, merging, plain, pooling, recurrent, special
from neuraldbg.dsl.rules.use import RULES, DoesNotFit, Made, Use, WrongArgument

__all__ = [
    "RULES",
    "DoesNotFit",
    "Made",
    "Use",
    "WrongArgument",
    "attention",
    "convolution",
    "merging",
    "plain",
    "pooling",
    "recurrent",
    "special",
]
