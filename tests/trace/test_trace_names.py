"""A layer answers to the names people type, and an unknown name to the nearest."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.errors import UnknownLayer
from neuraldbg.records import Site, SiteKind
from neuraldbg.trace import Names

MODEL, MODULE, PARAMETER = SiteKind.MODEL, SiteKind.MODULE, SiteKind.PARAMETER


def sequential() -> list[Site]:
    """nn.Sequential(Linear, ReLU, Linear, BatchNorm1d, Conv2d, Linear) called `net`."""
    ops = ["Linear", "ReLU", "Linear", "BatchNorm1d", "Conv2d", "Linear"]
    layers = [Site(i + 1, str(i), MODULE, op=op, model=0) for i, op in enumerate(ops)]
    return [Site(0, "net", MODEL, op="Sequential"), *layers, Site(9, "0.weight", PARAMETER, model=0)]


def gan() -> list[Site]:
    return [
        Site(0, "netG", MODEL, op="Generator"),
        Site(1, "main.0", MODULE, op="ConvTranspose2d", model=0),
        Site(2, "netD", MODEL, op="Discriminator"),
        Site(3, "main.0", MODULE, op="Conv2d", model=2),
        Site(4, "main.1", MODULE, op="LeakyReLU", model=2),
    ]


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("0", "0"),
        ("linear1", "0"),
        ("linear2", "2"),
        ("fc3", "5"),
        ("conv1", "4"),
        ("Linear_1", "0"),  # the first one, although there is a path "1"
        ("Linear_0", "0"),  # no zeroth: the 1.3.2 package's class and path
        ("Linear_5", "5"),
        ("Dense_2", "2"),
        ("dense_2", "2"),
        ("Conv2D_1", "4"),
        ("Conv2d_1", "4"),
        ("conv2d_1", "4"),
        ("BatchNormalization_1", "3"),
        ("relu1", "1"),
        ("ReLU_1", "1"),
        ("net", "net"),
        ("NET", "net"),
        ("root", "net"),
        ("0.weight", "0.weight"),
        ("0.WEIGHT", "0.weight"),
    ],
)
def test_a_layer_is_found_by_what_people_type(typed: str, path: str) -> None:
    assert Names(sequential()).resolve(typed).path == path


def test_the_canonical_name_is_the_path_and_with_several_models_the_model_first() -> None:
    assert [Names(sequential()).canonical(i) for i in (0, 1, 9)] == ["net", "0", "0.weight"]
    assert [Names(gan()).canonical(i) for i in range(5)] == [
        "netG",
        "netG.main.0",
        "netD",
        "netD.main.0",
        "netD.main.1",
    ]


def test_a_path_that_only_one_of_several_models_has_needs_no_model_name() -> None:
    assert Names(gan()).resolve("main.1").id == 4


def test_a_path_in_several_models_is_not_guessed() -> None:
    with pytest.raises(UnknownLayer, match="did you mean") as caught:
        Names(gan()).resolve("main.0")
    assert set(caught.value.nearest) == {"netD.main.0", "netG.main.0"}


def test_two_models_of_one_name_stay_apart() -> None:
    sites = [
        Site(0, "model", MODEL),
        Site(1, "fc", MODULE, model=0),
        Site(2, "model", MODEL),
        Site(3, "fc", MODULE, model=2),
    ]
    names = Names(sites)
    assert names.canonical(1) == "model.fc"
    assert names.canonical(3) == "model_2.fc"


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownLayer) as caught:
        Names(sequential()).resolve("lineer2")
    assert "linear2" in caught.value.nearest


def test_a_module_called_like_a_series_wins_unless_the_series_is_asked_for() -> None:
    names = Names([Site(0, "net", MODEL), Site(1, "loss", MODULE, model=0), Site(2, "loss", SiteKind.SERIES)])
    assert names.resolve("loss").id == 1
    assert names.resolve("loss", prefer=SiteKind.SERIES).id == 2


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("Linear_*", [1, 3, 6]),
        ("0*", [1, 9]),
        ("[02]", [1, 3]),
        (r"\d", [1, 2, 3, 4, 5, 6]),
        ("(?i)batchnorm.*", [4]),
        ("fc2", [3]),
        ("nothing*", []),
        ("(", []),
    ],
)
def test_patterns_are_globs_or_regular_expressions(pattern: str, ids: list[int]) -> None:
    assert [site.id for site in Names(sequential()).match(pattern)] == ids


SEGMENT = st.sampled_from(["encoder", "0", "1", "attn", "fc1", "Linear_1", "root", "linear1", "Δ"])
PATHS = st.lists(SEGMENT, min_size=1, max_size=3).map(".".join)
OPS = st.sampled_from(["Linear", "Conv2d", "Conv1d", "ReLU", "BatchNorm2d", "MyBlock", "LSTM", "Dense"])


@st.composite
def networks(draw: st.DrawFn) -> list[Site]:
    sites: list[Site] = []
    for number in range(draw(st.integers(1, 3))):
        model = len(sites)
        sites.append(Site(model, f"model{number}", MODEL))
        for path in draw(st.lists(PATHS, unique=True, max_size=6)):
            sites.append(Site(len(sites), path, MODULE, op=draw(OPS), model=model))
    return sites


@given(networks())
def test_every_canonical_name_leads_back_to_its_site(sites: list[Site]) -> None:
    names = Names(sites)
    assert len({names.canonical(site) for site in sites}) == len(sites)
    for site in sites:
        assert names.resolve(names.canonical(site)) == site


@given(networks())
def test_every_alias_leads_back_to_its_site_and_to_no_other(sites: list[Site]) -> None:
    names = Names(sites)
    seen: dict[str, int] = {}
    for site in sites:
        for alias in names.aliases(site):
            assert seen.setdefault(alias, site.id) == site.id
            assert names.resolve(alias) == site


@given(networks(), st.text(max_size=12))
def test_any_text_is_a_layer_or_an_unknown_layer(sites: list[Site], typed: str) -> None:
    names = Names(sites)
    with suppress(UnknownLayer):
        assert names.resolve(typed) in sites
    assert all(site in sites for site in names.match(typed))


@given(networks())
def test_the_nth_layer_of_a_type_is_the_nth(sites: list[Site]) -> None:
    names = Names(sites)
    linears = [site for site in sites if site.op == "Linear"]
    paths = {name for site in sites for name in (site.path, names.canonical(site))}
    for number, site in enumerate(linears, start=1):
        for alias in (f"Linear_{number}", f"fc{number}", f"linear{number}"):
            if alias not in paths:
                assert names.resolve(alias) == site
