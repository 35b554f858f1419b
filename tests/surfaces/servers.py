"""Real servers on real ports, real trainings behind them, and the shell's own curl."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from neuraldbg.control.channel import ChannelServer
from neuraldbg.control.gate import Gate
from neuraldbg.control.verbs import Verbs
from neuraldbg.errors import AbortedByUser, UnknownLayer
from neuraldbg.records import Phase, Stop
from neuraldbg.surfaces.web.app import make_app
from neuraldbg.surfaces.web.asking import Settings
from neuraldbg.surfaces.web.doorway import Doorway
from neuraldbg.surfaces.web.guard import Policy
from neuraldbg.surfaces.web.runs import ServedRuns
from neuraldbg.surfaces.web.serving import Service

LAYERS = {1: ("conv1", "Conv2D_1"), 2: ("act", "ReLU_1"), 3: ("fc", "Dense_1")}  # as made_runs.train has them


@contextmanager
def asking(*paths: Path, **changes: Any) -> Iterator[TestClient]:
    """The application without a port, asked by its owner."""
    runs = ServedRuns(paths)
    policy = Policy(**{"uid_of": lambda _: os.getuid(), **changes})
    try:
        with TestClient(make_app(runs, policy), base_url=f"http://{policy.host}:{policy.port}") as client:
            client.get(
                "/favicon.svg"
            )  # starts the worker thread: it is ours, and not left behind by the first who asks
            yield client
    finally:
        runs.close()


@contextmanager
def serving(
    *paths: Path, host: str = "127.0.0.1", interval_s: float = 0.05, settings: Settings | None = None
) -> Iterator[Doorway]:
    """The server as it is, in a thread."""
    door = Doorway(host, 0)
    service = Service(door, paths, settings or Settings(interval_s=interval_s))
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield door
    finally:
        service.stop()
        thread.join(30)
        door.close()


def send(door: Doorway, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """Status and answer of a request, by curl."""
    words = ["curl", "-sS", "-X", method, "-w", "\n%{http_code}", f"http://localhost:{door.port}{path}"]
    words += [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    text, _, status = subprocess.run(words, capture_output=True, text=True, check=True).stdout.rpartition("\n")
    return int(status), json.loads(text)


def curl(line: str, door: Doorway, *options: str) -> Any:
    """A line of the guide, as a shell runs it; only the port is another."""
    words = shlex.split(line.replace("\\\n", " ").replace("localhost:8050", f"localhost:{door.port}"))
    assert words[0] == "curl"
    result = subprocess.run(
        ["curl", "-sS", "--max-time", "30", *options, *words[1:]], capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


def _described(_: Stop, kind: str, layer: str | None, part: str | None) -> dict[str, Any]:
    return {"kind": kind, "layer": layer, "slice": part, "shape": [2, 2]}


class Training:
    """A thread that goes through the layers again and again and stops where the gate says; a trainer's channel."""

    def __init__(self, run_dir: Path, steps: int = 1_000_000) -> None:
        self.gate = Gate()
        self.gate.remote = True
        self.gate.breakpoints.resolve = self._resolve
        self.gate.breakpoints.unknown = self._unknown  # type: ignore[method-assign]
        self.channel = ChannelServer(Verbs(self.gate), run_dir)
        self.gate.on_event.append(self.channel.publish)
        self.steps, self.step, self.done = steps, 0, False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @staticmethod
    def _resolve(pattern: str) -> dict[int, str]:
        return {site: names[0] for site, names in LAYERS.items() if any(fnmatchcase(name, pattern) for name in names)}

    @staticmethod
    def _unknown(name: str) -> Exception:
        return UnknownLayer(name, [each for names in LAYERS.values() for each in names])

    def _run(self) -> None:
        try:
            while self.step < self.steps and not self.done:
                for phase in (Phase.FORWARD, Phase.BACKWARD):
                    for site, names in LAYERS.items():
                        self._reach(phase, site, names[0])
                self._reach(Phase.UPDATE, -1, None)
                self.step += 1
        except AbortedByUser:
            pass

    def _reach(self, phase: Phase, site: int, name: str | None) -> None:
        if not self.gate.active:
            threading.Event().wait(0.0001)
            return
        values = {
            "step": self.step,
            "execution_time": 0.75,
            "memory": 2000.0,
            "mean_activation": 0.0,
            "grad_norm": 1e-4,
        }
        stop = Stop(self.step, phase, name, site, values, describe=_described)
        self.gate.reached(stop, self.gate.watched(site, phase))

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self.done = True
        self.gate.breakpoints.clear()
        while self._thread.is_alive():
            if self.gate.paused:
                self.gate.resume()
            self._thread.join(0.01)
        self.channel.close()


@contextmanager
def training(run_dir: Path) -> Iterator[Training]:
    made = Training(run_dir)
    try:
        yield made
    finally:
        made.close()
