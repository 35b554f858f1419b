"""Breakpoints on the page: everything of one can be changed there, and what others change is seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from test_page import LISTED, going, sent, until


@pytest.fixture
def listing(page: Any, live: str) -> Iterator[Any]:
    """The view of breakpoints of a run that goes on; afterwards there are none."""
    going(page, f"{live}/?view=breakpoints")
    yield page
    for name in page.evaluate(LISTED):
        sent(page, "DELETE", "", f"{{layer_name: '{name}'}}")


def test_phase_and_once_are_changed_in_the_list(listing: Any) -> None:
    sent(listing, "POST", "", "{layer_name: '1', condition: 'step < 0'}")
    phase, once = listing.get_by_label("Phase of the one at 1"), listing.get_by_label("Only the first hit at 1")
    assert phase.input_value() == "forward"
    phase.select_option("backward")
    listing.get_by_text("Breakpoint changed for 1").wait_for()
    once.check()
    until(listing, lambda: listing.evaluate(LISTED)["1"]["once"])
    assert listing.evaluate(LISTED)["1"]["phase"] == "backward"


def test_a_change_that_is_refused_is_taken_back(browser: Any, live: str) -> None:
    context = browser.new_context()  # a page that may complain: a browser says in its console what was refused
    try:
        page = context.new_page()
        page.goto(f"{live}/?view=breakpoints")
        number = sent(page, "POST", "", "{layer_name: '1', condition: 'grad_norm < 0'}")["id"]
        phase = page.get_by_label("Phase of the one at 1")
        phase.select_option("forward")  # where no gradient is known yet
        page.get_by_text("grad_norm is not known in forward").wait_for()
        until(page, lambda: phase.input_value() == "backward")
        sent(page, "DELETE", f"/{number}", "{}")
    finally:
        context.close()


def test_a_breakpoint_may_be_set_on_a_layer_that_is_not_there_yet(listing: Any) -> None:
    listing.get_by_label("Layer of the breakpoint").fill("critic.0")
    listing.get_by_text("waits for such a layer").wait_for()
    listing.get_by_label("Condition of the breakpoint").fill("step <")
    listing.get_by_text("not Python syntax").wait_for()
    assert listing.get_by_role("button", name="Add").is_disabled()
    listing.get_by_label("Condition of the breakpoint").fill("")
    listing.get_by_text("waits for such a layer").wait_for()
    listing.get_by_role("button", name="Add").click()
    listing.get_by_text("▲ no such layer yet").wait_for()


def test_what_somebody_else_does_is_seen(listing: Any) -> None:
    number = sent(listing, "POST", "", "{layer_name: '0.0.0', condition: 'step < 0'}")["id"]
    box = listing.get_by_role("checkbox", name="Breakpoint at 0.0.0")
    box.wait_for()
    sent(listing, "PATCH", f"/{number}", "{enabled: false}")
    until(listing, lambda: not box.is_checked())
    sent(listing, "DELETE", f"/{number}", "{}")
    listing.get_by_text("No breakpoints.").wait_for()
