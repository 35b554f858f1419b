"""A run as one HTML file: nothing outside it, nothing broken by what stands in it, and bounded."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from commands import neural
from made_runs import MadeRun, made_run, train

from neuraldbg.errors import UsageError
from neuraldbg.records import Kind, Phase
from neuraldbg.surfaces.reports import page
from neuraldbg.surfaces.reports.files import write
from neuraldbg.surfaces.web.data import TOP
from neuraldbg.trace import open_trace

INDEX = """<!doctype html>
<html lang="en"><head><title>NeuralDbg</title>
<link rel="icon" href="/favicon.svg" type="image/svg+xml" />
<script type="module" crossorigin src="/assets/index-1.js"></script>
<link rel="stylesheet" crossorigin href="/assets/index-2.css">
</head><body><div id="app"></div><noscript>See <a href="/docs">/docs</a></noscript></body></html>"""


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page whose script holds what would end a script."""
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(INDEX)
    (folder / "assets" / "index-1.js").write_text("const a = '</script><!--', b = '</SCRIPT>';")
    (folder / "assets" / "index-2.css").write_text("p { color: red }")
    monkeypatch.setattr(page, "BUILT", folder)
    return folder


def a_run(folder: Path, **given: Any) -> Path:
    with made_run(folder) as run:
        train(run, **given)
        run.end(steps=given.get("steps", 50))
    return folder


def html(run: Path) -> str:
    return b"".join(page.html_parts(run)).decode()


def held(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/gzip" id="report">([A-Za-z0-9+/=]*)</script>', text)
    assert found is not None
    loaded: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return loaded


def floats(text: str) -> list[float]:
    found: list[float] = np.frombuffer(base64.b64decode(text), "<f4").tolist()
    return found


def test_everything_is_inside_and_nothing_is_loaded(built: Path, tmp_path: Path) -> None:
    text = html(a_run(tmp_path / "run"))
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', text) == []
    assert "default-src 'none'" in text
    assert "p { color: red }" in text
    assert re.findall(r"</script", text, re.I) == ["</script"] * 2  # of the data and of the code
    assert "<!--" not in text
    assert text.index('id="report"') < text.index("const a = ")


def test_a_hostile_name_stays_a_name(built: Path, tmp_path: Path) -> None:
    text = html(a_run(tmp_path / "</title><script>alert(1)\x07"))
    assert "<title>title&gt;&lt;script&gt;alert(1) · NeuralDbg report</title>" in text
    assert "\x07" not in text


def test_it_holds_what_the_page_asks_for(built: Path, tmp_path: Path) -> None:
    found = held(html(a_run(tmp_path / "run", nan_from=33)))
    answers = found["answers"]
    assert answers["/api/verdict"]["state"] == "critical"
    assert answers["/api/findings"]["findings"]
    assert answers["/api/run"]["where"] == {"state": "finished", "attached": False, "step": 49}
    assert answers["/api/series?metric=loss"]["nan_steps"] == list(range(33, 50))
    assert [frame["step"] for frame in found["frames"]] == list(range(50))
    metrics = found["frames"][10]["metrics"]
    at = found["layers"].index("fc")
    assert floats(metrics["mean_activation"])[at] == 0.25
    assert floats(metrics["execution_time"])[at] == pytest.approx(0.0005, rel=1e-4)
    assert floats(metrics["backward_time"])[at] == pytest.approx(0.002, rel=1e-4)
    assert found["heats"]["mean_activation"]["layers"] == ["conv1", "act", "fc"]
    assert found["flames"][-1]["step"] == 49
    assert answers["/api/settings"]["report"]["thinned"] == "This file holds flame graphs of 23 of 50 timed steps."


def curve(found: dict[str, Any], metric: str, layer: str, which: str = "max") -> list[float | None]:
    """As the page reads it: None where nothing was measured."""
    held = found["curves"][metric]
    at, wide = held["layers"].index(layer), len(held["edges"]) - 1
    bits = np.frombuffer(base64.b64decode(held[which]), "<u4")[at * wide : (at + 1) * wide]
    numbers = bits.view("<f4").tolist()
    return [None if x != x and b != page.IS_NAN else x for x, b in zip(numbers, bits.tolist(), strict=True)]


def test_curves_are_numbers_of_the_measured_steps_with_nan_and_infinity_in_them(built: Path, tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        site, other = run.module("fc", "Linear", run.model()), run.module("out", "Linear", 0)
        for at, norm in enumerate([1.5, np.inf, np.nan, 2.0, 1e-30, 1e100]):
            run.stats(site, Kind.GRADIENT, 10 * at, l2=norm, nan_count=at == 3)
        run.stats(other, Kind.GRADIENT, 20, l2=3.0)
        run.end(steps=60)
    found = held(html(tmp_path / "run"))
    assert found["curves"]["grad_norm"]["edges"] == [0, 10, 20, 30, 40, 50, 51]
    assert (found["curves"]["grad_norm"]["of"], found["curves"]["grad_norm"]["min"]) == (51, None)
    got = curve(found, "grad_norm", "fc")
    assert (got[0], got[1], got[4]) == (1.5, np.inf, pytest.approx(1e-30, rel=1e-3))
    assert got[2] != got[2]
    assert got[3] != got[3]  # its tensor has one
    assert got[5] == pytest.approx(3.4e38, rel=1e-2)  # the largest that it can hold, and no infinity
    assert curve(found, "grad_norm", "out") == [None, None, 3.0, None, None, None]


def test_curves_of_many_steps_have_the_smallest_and_the_largest(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "IN_CURVES", 1)
    with made_run(tmp_path / "run") as run:
        site = run.module("fc", "Linear", run.model())
        for step in range(500):
            run.stats(site, Kind.GRADIENT, step, l2={123: 1e6, 124: 1e-6}.get(step, 1.0))
    found = held(html(tmp_path / "run"))
    assert len(found["curves"]["grad_norm"]["edges"]) <= 41
    assert max(curve(found, "grad_norm", "fc")) == pytest.approx(1e6, rel=1e-3)
    assert min(curve(found, "grad_norm", "fc", "min")) == pytest.approx(1e-6, rel=1e-3)


def test_it_offers_only_what_it_has(built: Path, tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        for number in range(12):
            site = run.module(f"fc{number}", "Linear", run.model() if not number else 0)
            run.stats(site, Kind.ACTIVATION, 0)
            run.span(site, Phase.FORWARD, 0, 1.0)
        run.end(steps=1)
    found = held(html(tmp_path / "run"))
    offered = found["answers"]["/api/run"]["metrics"]
    assert offered == list(found["heats"])
    assert set(offered) >= {"mean_activation", "execution_time"}
    assert not {"grad_norm", "weight_norm", "min_activation"} & set(offered)
    assert set(found["curves"]) == set(offered)
    timed = found["answers"]["/api/summary"]
    assert (len(timed["layers"]), timed["timed_layers"]) == (12, 12)


def test_of_a_run_that_goes_on_it_tells_how_far_it_was(built: Path, tmp_path: Path) -> None:
    began = datetime.fromtimestamp(psutil.Process().create_time() + 1, timezone.utc).isoformat()
    with made_run(tmp_path / "run", pid=os.getpid(), started=began) as run:
        train(run, steps=30)
        run.writer.flush()
        answers = held(html(tmp_path / "run"))["answers"]
    assert answers["/api/run"]["state"] == answers["/api/runs"]["runs"][0]["state"] == "unfinished"
    assert answers["/api/run"]["where"]["attached"] is False
    assert answers["/api/settings"]["report"]["thinned"].startswith(
        "The training was at step 29 and not over when this was written. This file holds "
    )
    assert answers["/api/verdict"] == {"state": "undecided", "headline": "nothing wrong so far", "finding": None}


def test_what_was_tried_is_in_it(built: Path, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert held(html(run))["answers"]["/api/whatif"] == {"tried": None}
    tried = {"control": {}, "arms": [{"intervention": "lr x0.1", "verdict": "no_effect", "causes": []}]}
    (run / "whatif.json").write_text(json.dumps(tried))
    assert held(html(run))["answers"]["/api/whatif"] == {"tried": tried}


def test_the_loss_of_every_step_is_in_it(built: Path, tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        for step in range(5000):
            run.scalar("loss", step, 5.0 - step / 1000)
        run.end(steps=5000)
    loss = held(html(tmp_path / "run"))["answers"]["/api/series?metric=loss"]
    assert loss["steps"] == list(range(5000))
    assert loss["min"] == loss["max"]


def test_histograms_are_in_it(built: Path, tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        _histograms(run)
    found = held(html(tmp_path / "run"))["histograms"]
    assert list(found) == ["activation", "gradient", "parameter"]
    assert found["activation"]["fc"]["histograms"][0]["counts"] == [3]
    assert found["parameter"] == {}
    assert found["gradient"]["fc"]["ranges"]["max"]["steps"] == []  # nothing was measured of it


def test_a_layer_without_a_histogram_has_its_range(built: Path, tmp_path: Path) -> None:
    found = held(html(a_run(tmp_path / "run", steps=4)))["histograms"]["activation"]
    for layer in ("conv1", "act", "fc"):
        ranges = found[layer]["ranges"]
        assert found[layer]["histograms"] == []
        assert ranges["max"] == {"steps": [0, 1, 2, 3], "min": [3.0] * 4, "max": [3.0] * 4}
        assert ranges["mean"]["min"] == [0.25] * 4


def _histograms(run: MadeRun) -> None:
    site = run.module("fc", "Linear", run.model())
    for step in range(3):
        run.stats(site, Kind.ACTIVATION, step)
        run.histogram(site, Kind.ACTIVATION, step, {2: 3})


def test_of_a_long_run_it_keeps_the_ends_and_the_findings_and_says_so(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "NUMBERS", 1)
    monkeypatch.setattr(page, "CELLS", 1)
    found = held(html(a_run(tmp_path / "run", steps=400, nan_from=333)))
    steps = [frame["step"] for frame in found["frames"]]
    assert len(steps) == 20
    assert (steps[0], steps[-1]) == (0, 399)
    assert 333 in steps
    edges = found["heats"]["mean_activation"]["edges"]
    assert len(edges) <= 41
    said = found["answers"]["/api/settings"]["report"]["thinned"]
    assert said.startswith("This file holds 20 of 400 measured steps, those of findings among them; heatmaps with ")


def test_a_file_that_would_be_too_large_is_thinned_until_it_is_not(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path / "run", steps=300)
    whole = len(html(run))
    monkeypatch.setattr(page, "NUMBERS", 300 * 3 * len(page.OF_LAYERS))
    monkeypatch.setattr(page, "LARGEST", whole // 2)
    assert len(html(run)) < 0.8 * whole


def test_a_spike_of_one_step_survives_in_the_heatmap(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "CELLS", 1)
    with made_run(tmp_path / "run") as run:
        site = run.module("fc", "Linear", run.model())
        for step in range(500):
            run.stats(site, Kind.GRADIENT, step, l2=1e6 if step == 123 else 1.0)
    heat = held(html(tmp_path / "run"))["heats"]["grad_norm"]
    cells = base64.b64decode(heat["cells"])
    assert max(cells) == TOP
    at = cells.index(TOP)
    assert heat["edges"][at] <= 123 < heat["edges"][at + 1]


def test_numbers_keep_four_digits_and_what_is_no_number_stays_so() -> None:
    given = np.array([1.0, -123456.0, 1e-30, 0.0, np.inf, -np.inf, np.nan, 3.4e38], np.float32)
    kept = page.rounded(given)
    assert kept[4:7].tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(kept[6])
    finite = [0, 1, 2, 3]
    assert kept[finite] == pytest.approx(given[finite], rel=1e-4)


def test_the_steps_of_findings_are_kept_before_others() -> None:
    steps = np.arange(0, 1000, 10)
    kept = page.chosen(steps, {333, 335, 990}, 10)
    assert {330, 990} <= set(kept)
    assert (kept[0], kept[-1], len(kept) <= 10) == (0, 990, True)
    assert page.chosen(steps, set(), 1000) == steps.tolist()
    assert page.chosen(np.array([5]), {3}, 10) == [5]


def test_without_a_built_page_it_says_what_to_do(built: Path, tmp_path: Path) -> None:
    (built / "index.html").unlink()
    run, file = a_run(tmp_path / "run"), tmp_path / "x.html"
    with open_trace(run) as trace, pytest.raises(UsageError, match=r"npm run build.* builds it; --format text"):
        write(trace, run, "html", file)
    assert not file.exists()
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".part"] == []


def test_the_command_writes_a_file_named_after_the_run_and_says_how_large(place: Path) -> None:
    done = neural("report", "good", "--format", "html", cwd=place)
    if "was not built" in done.stderr:
        pytest.skip("the page is not built here")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"good\.html \(\d+ kB\)\n", done.stdout)
    assert (place / "good.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    there = neural("export", "good", "--format", "html", "-o", "-", cwd=place)
    assert there.stdout.startswith("<!doctype html>")


def test_text_and_json_can_go_to_a_file_too(place: Path) -> None:
    printed = neural("report", "good", "--json", cwd=place)
    assert neural("report", "good", "--json", "-o", "x.json", cwd=place).stdout == ""
    assert (place / "x.json").read_text(encoding="utf-8") == printed.stdout
    assert neural("report", "good", "-o", "x.txt", cwd=place).returncode == 0
    assert (place / "x.txt").read_text(encoding="utf-8").startswith("Verdict")
