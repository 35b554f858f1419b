"""A part of a tensor, as people write it: what makes no sense is refused with a reason."""

from __future__ import annotations

import pytest
import torch

from neuraldbg.capture.torch.shown import shown_tensor
from neuraldbg.errors import UsageError


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("99999999999999999999", "further than any tensor goes"),
        ("-99999999999999999999", "further than any tensor goes"),
        ("::99999999999999999999", "further than any tensor goes"),
        ("0, 99999999999999999999:", "further than any tensor goes"),
        (":99999999999999999999", "further than any tensor goes"),
        ("281474976710655", "does not fit the shape"),
        ("0, 0, 0", "does not fit the shape"),
        ("::0", "cannot go on by 0"),
        ("x", "no part of a slice"),
    ],
)
def test_a_slice_that_fits_nothing_says_why(part: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        shown_tensor(torch.zeros(3, 4), part)


@pytest.mark.parametrize(
    ("part", "shape"), [("0", [4]), (":2", [2, 4]), ("::281474976710655", [1, 4]), ("5:", [0, 4]), (None, [3, 4])]
)
def test_a_slice_is_taken_as_python_takes_it(part: str | None, shape: list[int]) -> None:
    assert shown_tensor(torch.zeros(3, 4), part)["slice_shape"] == shape
