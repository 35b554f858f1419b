"""Once a mesh exists our own code runs under a mode that refuses sharded tensors, and nothing else."""

from __future__ import annotations

import torch

from neuraldbg.capture.torch.shards import undisturbed_by_shards


def test_a_number_that_autograd_keeps_is_a_tensor_for_us() -> None:
    """The 2 of `loss / 2` is kept for backward."""
    for number in (2, 2.5):
        kept = (torch.ones(3, requires_grad=True) / number).grad_fn._saved_other  # type: ignore[union-attr]
        with undisturbed_by_shards():
            assert kept.detach().item() == number
            assert torch.equal(torch.ones(3).mul(kept), torch.full((3,), float(number)))
