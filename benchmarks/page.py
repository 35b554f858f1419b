"""What the page does in a real browser on a long run: 500 layers x 10,000 steps, in Chromium.

python benchmarks/page.py [--layers 500] [--steps 10000] [--dir FOLDER] [--run RUN] [--rounds 40]

The run is written, rolled up and judged first, as `neural debug` leaves one. `neural view` serves it to a Chromium
without a screen. Times are taken in the page itself, from the event until the picture is drawn in which every panel
names the new step (a browser draws 60 a second). Last, a process writes the same rows as if it trained, its viewer runs
as `neural debug` starts it, and the page follows at a refresh rate of 0.1 s.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import queries
from playwright.sync_api import sync_playwright

from neuraldbg.analysis.findings import strict
from neuraldbg.records import RunInfo
from neuraldbg.surfaces.web.judgement import of_recorded
from neuraldbg.surfaces.web.pages import BUILT
from neuraldbg.trace import create_run, open_trace
from neuraldbg.trace.findings import write_findings, write_verdict

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--enable-precise-memory-info"]
LIVE_WINDOWS, LIVE_WINDOW_S = 5, 8.0
LIVE_RATE = 50  # steps a second
BARS = {
    "usable": "2,000 ms",
    "scrub": "100 ms",
    "zoom": "100 ms",
    "live": "10 /s",
    "heap": "100 MB",
    "weight": "250 kB",
}

# what every panel of a view says when it shows a step: where, and the step as it is written there
PANELS = {
    "overview": {
        "[data-testid=shown-step]": "{:,}",
        'section[aria-label="Model structure"] .title': "values of step {:,}",
        'section[aria-label="Layer inspector"] .title': "values of step {:,}",
        'section[aria-label="Performance flame graph"] .title': "values of step {:,}",
        'section[aria-label="Slowest 10 layers"] .more': "up to step {:,}",
    },
    "layer": {
        "[data-testid=shown-step]": "{:,}",
        'section[aria-label="Layer inspector"] .title': "values of step {:,}",
    },
    "gradient-analysis": {"[data-testid=shown-step]": "{:,}", "section:last-of-type .title": "values of step {:,}"},
}
IN_THE_PAGE = """
window.says = ([where, text]) => {
  const said = document.querySelector(where)?.textContent ?? "";
  const at = said.indexOf(text);
  return at >= 0 && !/[\\d,]/.test(said[at + text.length] ?? "");
};
window.until = (holds, began) => new Promise((done, fail) => {
  const look = () => {
    if (holds()) setTimeout(() => done(performance.now() - began)); // after this picture is drawn
    else if (performance.now() - began > 20000) fail(new Error("it never came to that"));
    else requestAnimationFrame(look);
  };
  look();
});
"""
USABLE = "panels => until(() => panels.every(says), 0)"  # the page's clock begins with the navigation
SCRUB = """([panels, steps, every]) => new Promise((done) => {
  const slider = document.querySelector("input[type=range]");
  const move = (at) => {
    slider.value = steps[at];
    const began = performance.now();
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    if (at < steps.length - 1) setTimeout(() => move(at + 1), every);
    else done(until(() => panels.every(says), began));
  };
  move(0);
})"""
ZOOM = """async (delta) => {
  const canvas = document.querySelector("main canvas");
  const box = canvas.getBoundingClientRect();
  const began = performance.now();
  const where = { clientX: box.left + box.width * 0.6, clientY: box.top + 40, bubbles: true, cancelable: true };
  canvas.dispatchEvent(new WheelEvent("wheel", { ...where, deltaY: delta }));
  const shown = () => /steps ([\\d,]+)–([\\d,]+)/.exec(canvas.closest("section").textContent)
    .slice(1).map((each) => each.replaceAll(",", ""));
  await Promise.resolve();
  const drawn = () => {
    const [from, to] = shown();
    const row = document.querySelector("section:last-of-type [role=img]").getAttribute("aria-label");
    const heat = canvas.getAttribute("aria-label");
    return heat.includes(`over steps ${from} to ${to};`) && row.includes(`from step ${from} `);
  };
  return await until(drawn, began);
}"""
UPDATES = """(seconds) => new Promise((done) => {
  const seen = new Set();
  const place = document.querySelector("[data-testid=step]");
  const end = performance.now() + 1000 * seconds;
  const look = () => {
    seen.add(place.textContent);
    if (performance.now() < end) requestAnimationFrame(look);
    else done((seen.size - 1) / seconds);
  };
  look();
})"""
TRAINER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import queries
queries.train(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
"""


def said_at(view: str, step: int) -> list[list[str]]:
    return [[where, form.format(step)] for where, form in PANELS[view].items()]


def recorded(folder: Path, layers: int, steps: int) -> Path:
    """A run as `neural debug` leaves it: rolled up, with its findings."""
    run = create_run(RunInfo("bench", ("bench",), None, {}, ""), out=folder / "run")
    queries.write(run, layers, steps)
    with open_trace(run) as trace:
        trace.rollups.update()
        judged = of_recorded(trace)
    write_findings(run, [strict(one) for one in judged.findings])
    write_verdict(run, judged.verdict)
    return run


@contextmanager
def served(command: Sequence[str], **more: Any) -> Iterator[str]:
    """Where a command serves, as it says itself."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **more) as server:
        try:
            assert server.stderr is not None
            found = re.search(r"http://\S+", server.stderr.readline())
            assert found, server.stderr.read()
            yield found[0]
        finally:
            server.terminate()


def viewing(run: Path) -> AbstractContextManager[str]:
    return served([sys.executable, "-m", "neuraldbg", "view", str(run), "--port", "0"])


@contextmanager
def training(folder: Path, layers: int) -> Iterator[str]:
    """A process that writes the rows of a training and answers as one; and its viewer, as `neural debug` starts it."""
    run = create_run(RunInfo("live", ("live",), None, {}, ""), out=folder / "live")
    here = str(Path(__file__).parent)
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, here, str(run), str(layers), str(1 / LIVE_RATE)])
    reading, writing = os.pipe()
    options = ["--parent-fd", str(reading), "--port", "0", "--push-every", "0.1"]
    try:
        time.sleep(3.0)
        with served(
            [sys.executable, "-m", "neuraldbg.surfaces.viewer", str(run), *options], pass_fds=(reading,)
        ) as url:
            yield url
    finally:
        trainer.kill()
        trainer.wait()
        os.close(writing)
        os.close(reading)


class Browser:
    def __init__(self, browser: Any, address: str) -> None:
        self.address = address
        self.context = browser.new_context(viewport={"width": 1440, "height": 900})
        self.context.add_init_script(IN_THE_PAGE)
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.heap = self.context.new_cdp_session(self.page)
        self.heap.send("Performance.enable")

    def show(self, view: str, step: int, layer: str = "layers.250") -> None:
        self.page.goto(f"{self.address}/?view={view}&layer={layer}&step={step}")

    def heap_mb(self) -> float:
        found = self.heap.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in found if one["name"] == "JSHeapUsedSize")) / 1e6


def usable(browser: Any, address: str, last: int, rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        own = Browser(browser, address)
        own.show("overview", last // 2)
        times.append(float(own.page.evaluate(USABLE, said_at("overview", last // 2))))
        own.context.close()
    return times


def scrubs(own: Browser, view: str, last: int, rounds: int, moves: int = 1) -> list[float]:
    """`moves` events of the slider, 16 ms apart, and until all panels show the last of them."""
    chance = random.Random(0)
    own.show(view, last // 2)
    own.page.evaluate(USABLE, said_at(view, last // 2))
    times = []
    for _ in range(rounds):
        goal = chance.randrange(last)
        steps = [max(0, goal - 7 * before) for before in range(moves - 1, -1, -1)]
        times.append(float(own.page.evaluate(SCRUB, [said_at(view, goal), steps, 16])))
        own.page.wait_for_timeout(50)
    return times


def zooms(own: Browser, last: int, rounds: int) -> list[float]:
    own.show("heatmap", last // 2)
    own.page.get_by_role("img", name="grad norm of layers.250").wait_for()
    times = []
    for at in range(rounds):
        times.append(float(own.page.evaluate(ZOOM, -100 if at % 10 < 6 else 100)))
        own.page.wait_for_timeout(50)
    return times


def updates(browser: Any, folder: Path, layers: int) -> list[float]:
    with training(folder, layers) as address:
        own = Browser(browser, address)
        own.page.goto(address)
        own.page.get_by_role("region", name="Layer inspector").get_by_text("step").first.wait_for()
        own.page.wait_for_timeout(3000)
        found = [float(own.page.evaluate(UPDATES, LIVE_WINDOW_S)) for _ in range(LIVE_WINDOWS)]
        own.context.close()
        return found


def weight_kb() -> float:
    return (
        sum(
            len(gzip.compress(file.read_bytes()))
            for file in BUILT.rglob("*")
            if file.suffix in (".js", ".css", ".html")
        )
        / 1e3
    )


def middle(values: Sequence[float], statistic: Callable[[Sequence[float]], float] = statistics.median) -> str:
    """The median and its 95 % interval by resampling."""
    chance = np.random.default_rng(0)
    again = [statistic(chance.choice(values, len(values)).tolist()) for _ in range(2000)]
    low, high = np.quantile(again, [0.025, 0.975])
    return f"{statistic(values):8.1f} ({low:.1f} to {high:.1f})"


def line(what: str, value: str, unit: str, bar: str, times: Sequence[float] = ()) -> None:
    worst = f"   95 % within {np.quantile(times, 0.95):.0f}" if times else ""
    print(f"{what:46} {value:>28} {unit:4} bar {bar}{worst}", flush=True)


def measure(browser: Any, run: Path, rounds: int) -> None:
    with open_trace(run) as trace:
        last = trace.last_step or 0
    with viewing(run) as address:
        times = usable(browser, address, last, 7)
        line("usable: every panel shows a step", middle(times), "ms", BARS["usable"], times)
        own = Browser(browser, address)
        heap = []
        for view in PANELS:
            times = scrubs(own, view, last, rounds)
            line(f"scrub, {view}", middle(times), "ms", BARS["scrub"], times)
            heap.append(own.heap_mb())
        times = scrubs(own, "overview", last, rounds // 2, moves=30)
        line("after a drag of 30 moves, overview", middle(times), "ms", BARS["scrub"], times)
        times = zooms(own, last, rounds)
        line("zoom of the heatmap, row chart too", middle(times), "ms", BARS["zoom"], times)
        heap.append(own.heap_mb())
        own.context.close()
    line("JavaScript heap, the most seen", f"{max(heap):.1f}", "MB", BARS["heap"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--run", type=Path, default=None, help="a run of such rows that is there already")
    parser.add_argument("--dir", default=None, help="where to write (default: the temporary folder)")
    parser.add_argument("--only", choices=["recorded", "live"], default=None)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory(dir=options.dir) as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        print(f"Chromium {browser.version}, Python {platform.python_version()}, {platform.system()}", flush=True)
        if options.only != "live":
            measure(browser, options.run or recorded(Path(folder), options.layers, options.steps), options.rounds)
        if options.only != "recorded":
            rates = updates(browser, Path(folder), options.layers)
            line(f"live, {options.layers} layers, {LIVE_RATE} steps/s", middle(rates), "/s", BARS["live"])
        line("page, gzip", f"{weight_kb():.1f}", "kB", BARS["weight"])
        browser.close()


if __name__ == "__main__":
    main()
