"""A real browser on a real server. Without a browser these tests are skipped; in CI that is a failure."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trainings import going_on, record, report, viewing, without

from neuraldbg.surfaces.web.pages import BUILT

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOST = "127.0.0.1"


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        without("Chromium (apt-get install chromium)")
    if not (BUILT / "index.html").is_file():
        without("built page (pip install -e . builds it)")
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        without("playwright (pip install -e '.[test]')")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """One for each file: while it is open an event loop runs in this thread, which no other test may find there."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page in a fresh profile, 1440 wide and dark; whatever it complains about fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(20_000)
    page, wrong = context.new_page(), []
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: wrong.append(f"left the machine: {asked.url}") if _is_far(asked.url) else None)
    yield page
    context.close()
    assert wrong == []


@pytest.fixture
def lone(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file in a page that may ask for nothing else; whatever it complains about fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, offline=True)
    context.set_default_timeout(20_000)
    wrong: list[str] = []

    def opened(file: Path, theme: str = "dark", query: str = "") -> Any:
        page = context.new_page()
        page.emulate_media(color_scheme=theme)
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        own = (file.as_uri(), "data:", "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(asked.url))
        page.goto(f"{file.as_uri()}{query}")
        return page

    yield opened
    context.close()
    assert wrong == []


@pytest.fixture(scope="session")
def reports(runs: dict[str, Path]) -> dict[str, Path]:
    """The recorded runs as files, in a folder of their own."""
    made = {name: path.parent / "sent" / f"{name} report.html" for name, path in runs.items()}
    (runs["healthy"].parent / "sent").mkdir()
    for name, file in made.items():
        report(runs[name], file)
    return made


def _is_far(url: str) -> bool:
    return not url.startswith((f"http://{HOST}:", f"ws://{HOST}:", "data:", "blob:"))


@pytest.fixture(scope="session")
def runs(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def recorded(runs: dict[str, Path]) -> Iterator[str]:
    """Where the recorded runs are shown: the one that diverged, the healthy one, the one that crashed."""
    with viewing(runs["diverging"], runs["healthy"], runs["crashed"]) as address:
        yield address


@pytest.fixture(scope="session")
def live(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with going_on(tmp_path_factory.mktemp("live")) as address:
        yield address
