"""The vocabulary: every id known, named once, found under its other spellings, explained in four sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuraldbg.analysis.catalogue import ALIASES, catalogue, named
from neuraldbg.analysis.diagnose import sentence
from neuraldbg.errors import UnknownDiagnosis
from neuraldbg.surfaces.reports.detector_pages import GROUPS, pages

PAGES = Path(__file__).parents[2] / "docs" / "detectors"
CAUSES, SYMPTOMS = 88, 30


def test_every_cause_and_symptom_is_known() -> None:
    sorts = [entry.sort for entry in catalogue().values()]
    assert (sorts.count("cause"), sorts.count("symptom")) == (CAUSES, SYMPTOMS)


def test_every_group_has_a_heading() -> None:
    assert {entry.group for entry in catalogue().values()} <= set(GROUPS)


def test_how_a_cause_is_repaired_is_one_of_four_ways() -> None:
    assert {entry.auto for entry in catalogue().values() if entry.sort == "cause"} <= {"R", "S", "D", "N"}


@pytest.mark.parametrize("other", sorted(ALIASES))
def test_other_spellings_lead_to_the_entry(other: str) -> None:
    assert named(other).id == ALIASES[other]


def test_spaces_hyphens_and_capitals_do_not_matter() -> None:
    assert named("Missing-Zero grad").id == "missing_zero_grad"


def test_an_unknown_id_answers_with_the_nearest() -> None:
    with pytest.raises(UnknownDiagnosis, match="did you mean 'missing_zero_grad'"):
        named("mising_zero_grad")
    with pytest.raises(UnknownDiagnosis, match="`neural explain` lists them"):
        named("qqqqqq")


@pytest.mark.parametrize("name", sorted(pages()))
def test_the_page_of_every_id_is_what_its_code_says(name: str) -> None:
    assert (PAGES / name).read_text(encoding="utf-8") == pages()[name], "run `make docs`"


def test_no_page_is_left_over() -> None:
    assert {page.name for page in PAGES.glob("*.md")} == set(pages())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("call step() once", "Call step() once"),
        ("model.train() after it", "model.train() after it"),
        ("log_softmax or cross_entropy", "log_softmax or cross_entropy"),
        ("warm-up, then more", "Warm-up, then more"),
    ],
)
def test_a_cure_begins_with_a_capital_letter_unless_it_begins_with_code(words: str, told: str) -> None:
    assert sentence(words) == told
