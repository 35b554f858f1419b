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
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    finds = lines[lines.index("Finds") + 1 : lines.index("Why it matters") - 1]
    assert len(finds) > 1
    assert all(line.startswith("  ") for line in finds)


def test_without_an_id_all_are_listed(tmp_path: Path) -> None:
    done = neural("explain", cwd=tmp_path)
    assert "missing_zero_grad" in done.stdout
    assert "vanishing_gradient" in done.stdout


def test_json(tmp_path: Path) -> None:
    one = json.loads(neural("explain", "--json", "nan_loss", cwd=tmp_path).stdout)
    assert one["id"] == "nan_loss"
    assert len(json.loads(neural("explain", "--json", cwd=tmp_path).stdout)) == 118


def test_a_wrong_id_is_one_line_with_the_nearest(tmp_path: Path) -> None:
    done = neural("explain", "softmax_before_crossentropy", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "softmax_before_cross_entropy" in done.stderr


def test_a_part_of_a_name_finds_those_that_hold_it_and_nothing_else(tmp_path: Path) -> None:
    assert "did you mean 'zero_gradient' or 'missing_zero_grad'?" in neural("explain", "zero_grad", cwd=tmp_path).stderr
    assert "did you mean 'lr_too_low' or 'lr_too_high'?" in neural("explain", "lr", cwd=tmp_path).stderr
