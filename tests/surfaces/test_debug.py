"""What `neural debug` hands to the launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuraldbg import launch
from neuraldbg.launch import Request
from neuraldbg.surfaces.cli import main


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Request]:
    """The requests that reach the launcher, which runs nothing and answers with exit code 5."""
    requests: list[Request] = []

    def record(request: Request) -> int:
        requests.append(request)
        return 5

    monkeypatch.setattr(launch, "run", record)
    monkeypatch.chdir(tmp_path)
    return requests


PAGE = (1.0, 100, 1000, "dark", "execution_trace,gradient_flow,memory_profile")


def debug(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["debug", *words])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_a_plain_script_has_the_defaults(asked: list[Request]) -> None:
    assert debug("train.py", "--lr", "0.1") == 5
    kept = {"max_disk_bytes": 2 * 10**9 - 129_000_000, "record_bytes": 128_000_000, "record_share": 0.0025}
    assert asked == [Request(target="train.py", args=("--lr", "0.1"), port=8050, page=PAGE, **kept)]  # type: ignore[arg-type]


def test_every_option_arrives(asked: list[Request], tmp_path: Path) -> None:
    words = "--headless --out o --budget full --layers fc* --layers conv1 --max-disk 1GB --export s.json --json"
    debug(*words.split(), "--fail-on", "critical", "-m", "pkg.train", "--help", "--", "-m", "x")
    assert asked == [
        Request(
            target="pkg.train", args=("--help", "--", "-m", "x"), module=True, out=Path("o"), budget="full",
            layers=("fc*", "conv1"), max_disk_bytes=874_000_000, record_bytes=125_000_000, record_share=0.0025,
            export=tmp_path / "s.json", json=True, fail_on="critical", serve=False, page=PAGE,
        )
    ]  # fmt: skip


def test_what_is_asked_for_a_recording_takes_nothing_from_the_run(asked: list[Request]) -> None:
    debug("--max-disk", "1GB", "--record-memory", "3GB", "train.py")
    debug("--max-disk", "1GB", "--record", "full", "train.py")
    debug("--max-disk", "1GB", "--record", "off", "train.py")
    kept = [(request.max_disk_bytes, request.record_bytes) for request in asked]
    assert kept == [(10**9, 3 * 10**9), (10**9, 512 * 10**6), (10**9, 0)]


def test_an_update_before_the_first_cannot_be_armed(asked: list[Request], capsys: pytest.CaptureFixture[str]) -> None:
    assert debug("--arm-nan", "-3", "train.py") == 2
    assert "'--arm-nan': -3 is not in the range x>=0" in capsys.readouterr().err
    assert asked == []


def test_no_animations_means_no_live_line(asked: list[Request]) -> None:
    with pytest.raises(SystemExit):
        main(["--no-animations", "debug", "train.py"])
    assert [request.live for request in asked] == [False]


def test_the_page_is_served_unless_it_is_not_wanted(asked: list[Request], capsys: pytest.CaptureFixture[str]) -> None:
    debug("--dashboard", "train.py")
    debug("--host", "0.0.0.0", "--port", "8888", "train.py")
    debug("--no-dashboard", "train.py")
    debug("--headless", "--port", "8888", "train.py")
    assert [(request.host, request.port) for request in asked] == [
        ("127.0.0.1", 8050), ("0.0.0.0", 8888), ("127.0.0.1", None), ("127.0.0.1", None),
    ]  # fmt: skip
    assert capsys.readouterr().err == ""


def test_settings_of_the_project_are_taken_and_options_win(asked: list[Request], tmp_path: Path) -> None:
    (tmp_path / "neural_config.yaml").write_text("budget: 3%\nmax_disk: 5GB\n")
    debug("--max-disk", "1GB", "train.py")
    assert [(request.budget, request.max_disk_bytes) for request in asked] == [
        ("3%", 874_000_000)
    ]  # and 125 MB for what is recorded


def test_the_dial_of_anomalies_and_the_focus_are_told_to_the_analysis(asked: list[Request], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("anomaly_sensitivity: 0.98\n")
    (tmp_path / "neural_config.yaml").write_text("history:\n  anomaly: 50\n")
    debug("--anomalies", "--gradients", "train.py")
    dial = {"anomaly_sensitivity": 0.98, "anomaly_history": 50}
    assert asked[0].settings == {**dial, "focus": ["gradients", "anomalies"]}


@pytest.mark.parametrize(
    ("path", "reason"),
    [("gone/s.json", "there is no directory"), (".", "it is a directory")],
)
def test_an_export_that_cannot_work_is_refused_before_training(
    asked: list[Request], capsys: pytest.CaptureFixture[str], path: str, reason: str
) -> None:
    assert debug("--export", path, "train.py") == 2
    assert asked == []
    assert reason in capsys.readouterr().err
