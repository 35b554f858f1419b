"""Written values: read exactly or refused with what was expected and what was found."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.config import SETTINGS, Budget, parse_budget, parse_bytes
from neuraldbg.config.values import LARGEST_SIZE, MILLISECONDS, UNITS, Form, shown_bytes
from neuraldbg.errors import ConfigError

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("2GB", 2_000_000_000),
        ("512MB", 512_000_000),
        ("512 mb", 512_000_000),
        ("1.5K", 1500),
        ("4GiB", 4 * 2**30),
        ("0.1GB", 100_000_000),
        ("17", 17),
        (17, 17),
        (0, 0),
    ],
)
def test_sizes_are_exact(written: object, size: int) -> None:
    assert parse_bytes(written) == size


@pytest.mark.parametrize("written", ["", "GB", "2XB", "-1", -1, 2.5, True, None, "1e9", "2GBs", "nan", "9" * 21, 2**63])
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match="expected a size such as 512MB"):
        parse_bytes(written)


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
def test_a_size_is_its_number_times_its_unit(count: int, unit: str) -> None:
    if count * UNITS[unit] <= LARGEST_SIZE:
        assert parse_bytes(f"{count}{unit}") == parse_bytes(f" {count} {unit.lower()} ") == count * UNITS[unit]


@given(st.integers(0, LARGEST_SIZE))
def test_a_shown_size_is_read_back(size: int) -> None:
    assert parse_bytes(shown_bytes(size)) == size


@pytest.mark.parametrize(
    ("written", "ratio", "shown"),
    [
        ("1%", 0.01, "1%"),
        ("0.01", 0.01, "1%"),
        (0.01, 0.01, "1%"),
        ("2.5 %", 0.025, "2.5%"),
        ("100%", 1.0, "100%"),
        ("FULL", math.inf, "full"),
        ("off", 0.0, "off"),
        (False, 0.0, "off"),  # a bare `off` in YAML
        ("0%", 0.0, "off"),
        (0, 0.0, "off"),
    ],
)
def test_budgets(written: object, ratio: float, shown: str) -> None:
    budget = parse_budget(written)
    assert budget == Budget(ratio)
    assert str(budget) == shown
    assert (budget.full, budget.off) == (shown == "full", shown == "off")


@pytest.mark.parametrize("written", ["", "%", "-1%", "101%", "nan", "inf", "lots", None, True, [], 10**400, "1%%"])
def test_what_is_no_budget_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match=r"expected a share such as 1% or 0\.01"):
        parse_budget(written)


@pytest.mark.parametrize("written", [1, "1", 5.0])
def test_a_bare_number_that_looks_like_percent_asks_for_the_sign(written: object) -> None:
    with pytest.raises(ConfigError, match=r"write \d% if you mean percent"):
        parse_budget(written)


@given(st.floats(1e-9, 1, exclude_max=True))
def test_a_shown_budget_is_read_back(ratio: float) -> None:
    assert parse_budget(str(parse_budget(ratio))).ratio == pytest.approx(ratio, rel=1e-9)


@given(ANYTHING | st.just(1 << 20_000))
def test_every_form_reads_anything_or_refuses_it_in_one_line(written: object) -> None:
    for form in [*(setting.form for setting in SETTINGS.values()), MILLISECONDS]:
        assert re.fullmatch("|expected .*, found .*", refusal(form, written))


def refusal(form: Form, written: object) -> str:
    try:
        form.parse(written)
    except ConfigError as error:
        return str(error)
    return ""


def test_every_default_is_a_value_of_its_form() -> None:
    for setting in SETTINGS.values():
        assert setting.form.parse(setting.default) == setting.default, setting.key


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("headless", "Yes", True),
        ("headless", 0, False),
        ("port", "8888", 8888),
        ("history.inspector", 50.0, 50),
        ("thresholds.vanishing", "1e-5", 1e-5),  # YAML 1.1 reads 1e-5 as text
        ("backend", "Torch", "pytorch"),
        ("layers", "encoder.*", ("encoder.*",)),
        ("layers", "fc{1,2}", ("fc{1,2}",)),
        ("layers", ["a", "b"], ("a", "b")),
        ("dashboard.charts", "gradient_flow, memory_profile", ("gradient_flow", "memory_profile")),
        ("log_level", "WARN", "warning"),
        ("fail_on", None, None),
    ],
)
def test_values_are_read_leniently_where_the_meaning_is_clear(key: str, written: object, value: object) -> None:
    assert SETTINGS[key].form.parse(written) == value


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("headless", "maybe"),
        ("headless", 2),
        ("port", 70000),
        ("port", 80.5),
        ("history.inspector", 0),
        ("dashboard.refresh_rate", 0),
        ("anomaly_sensitivity", 1.5),
        ("thresholds.vanishing", "nan"),
        ("backend", "caffe"),
        ("dashboard.charts", ["pie"]),
        ("out", "a\0b"),
        ("host", ""),
        ("max_disk", "0GB"),
    ],
)
def test_bad_values_are_refused(key: str, written: object) -> None:
    with pytest.raises(ConfigError, match=r"expected .*, found "):
        SETTINGS[key].form.parse(written)
