"""Batches whose targets look like a mistake and are none."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Batch = tuple[Tensor, Tensor]


def bright(n: int = 64) -> Batch:
    """How many of six lamps are on: whole numbers, evenly spread, and a quantity all the same."""
    count = torch.randint(0, 7, (n,))
    lamps = (torch.rand(n, 6).argsort(1) < count[:, None]).float()
    return lamps + 0.1 * torch.randn(n, 6), count.float()[:, None]


def clicks(n: int = 32) -> Batch:
    """What somebody clicked on, to be rebuilt from itself: draws of one distribution."""
    taste = torch.randn(n, 6)
    chosen = (taste >= taste.sort(1).values[:, 3:4]).float()
    return F.normalize(chosen), chosen
