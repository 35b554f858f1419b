"""neural explain: the page of a diagnosis on the terminal."""

from __future__ import annotations

import json
from pathlib import Path

from commands import neural


def test_the_page_has_its_four_parts_within_the_width(tmp_path: Path) -> None:
    done = neural("explain", "missing_zero_grad", cwd=tmp_path)
    assert done.returncode == 0
    for part in ("Finds", "Why it matters", "Decides by", "Usual cures"):
        assert part in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_without_an_id_all_are_listed(tmp_path: Path) -> None:
    done = neural("explain", cwd=tmp_path)
    assert "missing_zero_grad" in done.stdout
    assert "vanishing_gradient" in done.stdout


def test_json(tmp_path: Path) -> None:
    one = json.loads(neural("explain", "--json", "nan_loss", cwd=tmp_path).stdout)
    assert one["id"] == "nan_loss"
    assert len(json.loads(neural("explain", "--json", cwd=tmp_path).stdout)) == 114


def test_a_wrong_id_is_one_line_with_the_nearest(tmp_path: Path) -> None:
    done = neural("explain", "softmax_before_crossentropy", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "softmax_before_cross_entropy" in done.stderr
