"""An arm is judged against the same script without the change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.replay.outcomes import Ending, effect, failed, same

NAN = float("nan")


def falling(start: float, end: float, updates: int = 80) -> np.ndarray:
    return end + (start - end) * np.exp(-np.arange(updates) / 8)


def flat(value: float, updates: int = 80) -> np.ndarray:
    return np.full(updates, value)


@pytest.mark.parametrize(
    ("control", "arm", "came"),
    [
        (np.array([9.7, 250.0, NAN, NAN, NAN, NAN, NAN, NAN]), falling(9.7, 0.1), "cured"),
        (np.array([9.7, 250.0, NAN, NAN, NAN, NAN, NAN, NAN]), flat(10.7), "helps"),  # finite, and learns nothing
        (flat(1.62), falling(1.61, 0.01), "cured"),
        (flat(1.62), flat(1.60), "no_effect"),
        (falling(1.6, 1.32), falling(1.6, 1.21), "helps"),
        (falling(1.6, 0.01), falling(1.6, 1.0), "harm"),
        (falling(1.6, 0.01), flat(NAN), "harm"),
        (flat(NAN), flat(NAN), "no_effect"),
        (flat(-3.0), falling(-3.0, -9.0), "cured"),
    ],
)
def test_a_loss_that_comes_down_where_the_control_did_not_is_a_cure(
    control: np.ndarray, arm: np.ndarray, came: str
) -> None:
    assert effect(Ending(control), Ending(arm)) == came


def test_a_cause_that_never_showed_in_the_loss_is_cured_when_it_is_no_longer_found() -> None:
    control = Ending(falling(2.0, 0.1), frozenset({"train_mode_in_eval"}))
    assert effect(control, Ending(falling(2.0, 0.1)), "train_mode_in_eval") == "cured"
    assert effect(control, control, "train_mode_in_eval") == "no_effect"
    assert effect(control, Ending(falling(2.0, 0.1), frozenset({"dead_units"})), "train_mode_in_eval") == "helps"


def test_a_program_that_no_longer_crashes_is_cured_and_one_that_does_is_harmed() -> None:
    crashed, fine = Ending(flat(1.0, 3), exit_code=1), Ending(falling(1.0, 0.1))
    assert effect(crashed, fine) == "cured"
    assert effect(fine, crashed) == "harm"


def test_an_arm_whose_time_ran_out_is_held_against_as_many_updates_of_the_control() -> None:
    stuck, falls = Ending(flat(1.6, 200)), falling(1.6, 0.01)
    assert effect(stuck, Ending(falls[: len(falls) - 5], exit_code=None, timed_out=True)) == "cured"
    assert effect(Ending(falls), Ending(falls[:30], exit_code=None, timed_out=True)) == "no_effect"
    assert effect(stuck, Ending(flat(1.6, 3), exit_code=None, timed_out=True)) == "harm"  # it hangs


def test_one_outlier_at_the_end_does_not_decide() -> None:
    spiked = falling(2.0, 0.1)
    spiked[-2] = 1.6e11
    assert effect(Ending(flat(2.0)), Ending(spiked)) == "cured"


def test_two_runs_are_the_same_only_bit_for_bit() -> None:
    one = Ending(np.array([1.0, NAN]))
    assert same(one, Ending(np.array([1.0, NAN])))
    assert not same(one, Ending(np.array([1.0 + 1e-12, NAN])))
    assert not same(one, Ending(np.array([1.0])))


@given(
    st.lists(st.floats(width=32), max_size=60),
    st.lists(st.floats(width=32), max_size=60),
    st.sampled_from([0, 1, None]),
)
def test_every_pair_of_runs_has_one_of_four_outcomes(control: list[float], arm: list[float], code: int | None) -> None:
    first, second = Ending(np.array(control)), Ending(np.array(arm), exit_code=code)
    assert effect(first, second) in {"cured", "helps", "no_effect", "harm"}
    assert effect(first, first) != "harm"
    assert isinstance(failed(second), bool)
