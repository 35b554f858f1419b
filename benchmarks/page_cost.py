"""What the trainer pays for an open page: its CPU time a step with a page open, over the same with none.

python benchmarks/page_cost.py [--refresh 0.1] [--budget full] [--quads 8] [--seconds 6]

A training under `neural debug`, pinned to one core and on one thread; its viewer, which serves the page, and Chromium
are pinned to the other. The page is opened and left in turn (none, open, open, none) while the same training goes on;
CPU time is that of all threads of the trainer, as it says itself. The ratio of each such four, their mean, and a 95 %
interval by resampling.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from page import FLAGS, UPDATES
from playwright.sync_api import sync_playwright

BAR = 1.02
TRAINERS_CORE, OTHER_CORE = 0, 1
SETTLE_S = 1.0
WARM_UP_S = 10.0
SCRIPT = """
import sys, time
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(256, 256), nn.ReLU())), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
inputs, targets = torch.randn(256, 256), torch.randn(256, 1)
with open(sys.argv[1], "a", buffering=1) as log:
    for step in range(10**9):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            log.write(f"{step} {time.process_time_ns()}\\n")
"""


@contextmanager
def training(folder: Path, refresh: str, budget: str) -> Iterator[tuple[str, Path]]:
    """Its address and its log."""
    script, log = folder / "train.py", folder / "log"
    script.write_text(SCRIPT, encoding="utf-8")
    code = "import os, sys; os.sched_setaffinity(0, {int(sys.argv.pop(1))}); "
    code += "from neuraldbg.surfaces.cli import main; main()"
    options = ["--budget", budget, "--port", "0", "--out", str(folder / "run")]
    command = [sys.executable, "-c", code, str(TRAINERS_CORE), "debug", *options, str(script), str(log)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NEURALDBG_DASHBOARD__REFRESH_RATE": refresh}
    trainer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert trainer.stderr is not None
        found = None
        while found is None:
            said = trainer.stderr.readline()
            assert said, "the training ended"
            found = re.search(r"http://\S+", said)
        drain = threading.Thread(target=trainer.stderr.read, daemon=True)
        drain.start()
        for child in psutil.Process(trainer.pid).children(recursive=True):
            for thread in child.threads():
                os.sched_setaffinity(thread.id, {OTHER_CORE})
        yield found[0], log
    finally:
        trainer.send_signal(signal.SIGINT)
        try:
            trainer.wait(60)
        except subprocess.TimeoutExpired:
            trainer.kill()


def reading(log: Path) -> tuple[int, int]:
    """The last step told, and the CPU time until then."""
    lines = log.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    step, spent = lines[-1].split()
    return int(step), int(spent)


def per_step_us(log: Path, seconds: float) -> float:
    time.sleep(SETTLE_S)
    first, before = reading(log)
    time.sleep(seconds)
    last, after = reading(log)
    return (after - before) / (last - first) / 1e3


def measure(page: Any, address: str, log: Path, quads: int, seconds: float) -> list[float]:
    ratios = []
    for number in range(quads):
        spent: dict[bool, list[float]] = {False: [], True: []}
        for is_open in (False, True, True, False):
            page.goto(address if is_open else "about:blank")
            spent[is_open].append(per_step_us(log, seconds))
        ratios.append(sum(spent[True]) / sum(spent[False]))
        told = ", ".join(f"{each:.0f}" for each in (*spent[False], *spent[True]))
        print(f"  {number + 1}: us a step without, without, open, open: {told}; ratio {ratios[-1]:.4f}", flush=True)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refresh", default="1.0", help="dashboard.refresh_rate, seconds")
    parser.add_argument("--budget", default="1%")
    parser.add_argument("--quads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})  # Chromium, which we start, inherits it
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        with training(Path(folder), options.refresh, options.budget) as (address, log):
            time.sleep(WARM_UP_S)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            ratios = measure(page, address, log, options.quads, options.seconds)
            page.goto(address)
            page.wait_for_timeout(3000)
            rate = page.evaluate(UPDATES, 4.0)
        browser.close()
    logs = np.log(ratios)
    chance = np.random.default_rng(0)
    again = [chance.choice(logs, len(logs)).mean() for _ in range(10_000)]
    low, high = (math.exp(each) for each in np.quantile(again, [0.025, 0.975]))
    print(f"refresh_rate {options.refresh}, budget {options.budget}: {rate:.1f} updates/s on the page")
    print(
        f"CPU time with the page open over without: {math.exp(logs.mean()):.4f} ({low:.4f} to {high:.4f})   bar {BAR}"
    )


if __name__ == "__main__":
    main()
