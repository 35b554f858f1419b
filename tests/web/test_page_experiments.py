"""The button on a finding: nothing is run before somebody has read what, and what it proves is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forkserver import ForkServer
from texts import FORGETFUL
from trainings import viewing

SCRIPT = FORGETFUL + 'open("log.txt", "w").write(str(float(loss)))\n'


@pytest.fixture
def run_at(tmp_path: Path, torch_server: ForkServer, chromium: str) -> Iterator[tuple[str, Path]]:
    (tmp_path / "train.py").write_text(SCRIPT)
    assert torch_server.neural("debug", "--headless", "--out", "run", "train.py", cwd=tmp_path).code == 0
    with viewing(tmp_path / "run", port=8496) as address:
        yield address, tmp_path


@pytest.mark.slow
def test_a_fix_is_tried_from_the_page_and_proved(page: Any, run_at: tuple[str, Path]) -> None:
    address, folder = run_at
    page.goto(f"{address}/?view=why")
    panel = page.get_by_role("region", name="What to do")
    panel.get_by_role("button", name="Try the cures on the script itself").click()
    panel.get_by_text("would be run again in a copy of its folder").wait_for()
    assert "log.txt" in panel.inner_text()
    assert not (folder / "run" / "whatif").exists()
    panel.get_by_role("button", name="Run it").click()
    panel.get_by_role("status").get_by_text(re.compile("begun")).wait_for()
    panel.get_by_role("cell", name="the suggested patch").wait_for(timeout=240_000)
    panel.get_by_text(re.compile("✔ verified: loss")).first.wait_for()
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "run", "train.py"]
    page.goto("about:blank")


@pytest.mark.slow
def test_a_tensor_that_was_never_stored_is_reconstructed_on_the_page(page: Any, run_at: tuple[str, Path]) -> None:
    address, folder = run_at
    page.goto(f"{address}/?view=layer&layer=0&step=7")
    panel = page.get_by_role("region", name="Tensor")
    panel.get_by_text("of step 7: the script is run up to its first pass").wait_for()
    panel.get_by_label("Which tensor").select_option("weight_gradient")
    panel.get_by_role("button", name="Reconstruct tensor").click()
    panel.get_by_text("proved identical").wait_for(timeout=240_000)
    panel.get_by_text("32 × 8").first.wait_for()
    assert panel.get_by_role("row").count() == 32
    page.keyboard.press("]")  # another step: that one is not made again unasked
    panel.get_by_text("of step 8: the script is run up to its first pass").wait_for()
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "run", "train.py"]
    page.goto("about:blank")
