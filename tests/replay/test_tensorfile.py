"""A file of tensors, whatever their sizes, is read as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from neuraldbg.capture.torch.recording import tensorfile


class Slow:
    """A file of which every call takes a few bytes only."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.whole = b""

    def write(self, part: memoryview) -> int:
        wrote = min(len(part), tensorfile.SMALL)
        self.whole += bytes(part[:wrote])
        self.calls.append(wrote)
        return wrote


def test_small_parts_go_together_and_large_ones_as_they_are() -> None:
    small, large = [b"ab", b"", b"cd"], b"x" * (2 * tensorfile.SMALL + 5)
    file = Slow()
    tensorfile._write_all(file, [*small, large, b"", large, *small])
    assert file.whole == b"abcd" + large + large + b"abcd"
    size = tensorfile.SMALL
    assert file.calls == [4, size, size, 5, size, size, 5, 4]


@pytest.mark.parametrize("order", [(3, 40_000, 0, 5, 9_000), (40_000, 40_000, 1), (0,), ()])
def test_tensors_of_all_sizes_come_back(tmp_path: Path, order: tuple[int, ...]) -> None:
    tensors = {str(at): torch.randn(size) for at, size in enumerate(order)}
    tensors["turned"] = torch.randn(4, 6).t()
    path = tmp_path / "some.safetensors"
    size = tensorfile.write(path, tensors, {"about": 1})
    assert path.stat().st_size == size
    found, about = tensorfile.read(path)
    assert about == {"about": 1}
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert not tensor.numel() or found[name].stride() == tensor.stride()
