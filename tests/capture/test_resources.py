"""What the machine uses, once a second: real where it can be read, absent where it cannot, and gone after close."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forkserver import ForkServer

from neuraldbg.analysis.profile import resources
from neuraldbg.capture.resources import Nvml, Processor, ResourceSampler, machine, rss_bytes, visible_devices
from neuraldbg.trace import open_trace

PROGRAMS = Path(__file__).parents[1] / "programs"


def test_the_thread_records_what_can_be_read_and_ends_with_close() -> None:
    seen: queue.Queue[tuple[str, float]] = queue.Queue()
    sampler = ResourceSampler(lambda name, value: seen.put((name, value)), interval_s=0.02)
    sampler.start()
    names = {seen.get(timeout=20)[0] for _ in range(6)}
    sampler.close()
    sampler.close()
    assert names >= {"resource.cpu_percent", "resource.process_cpu_percent", "resource.rss_bytes"}
    assert "neuraldbg-resources" not in {thread.name for thread in threading.enumerate()}


def test_what_cannot_be_read_is_absent() -> None:
    seen: queue.Queue[tuple[str, float]] = queue.Queue()
    sampler = ResourceSampler(
        lambda name, value: seen.put((name, value)), interval_s=0.01, readers=lambda: [lambda: {"a": None, "b": 1.0}]
    )
    sampler.start()
    assert [seen.get(timeout=20) for _ in range(3)] == [("resource.b", 1.0)] * 3
    sampler.close()


def test_a_sampler_that_never_started_can_be_closed() -> None:
    ResourceSampler(lambda *_: None).close()


def test_busy_is_measured_between_two_looks() -> None:
    look = Processor()
    assert look()["process_cpu_percent"] is None  # nothing to compare with yet
    began = time.process_time()
    while time.process_time() - began < 0.1:
        pass
    told = look()
    assert told["process_cpu_percent"] is not None
    assert told["process_cpu_percent"] > 5
    assert told["cpu_percent"] is None or 0 <= told["cpu_percent"] <= 100
    assert (rss_bytes() or 0) > 1_000_000


def test_a_forked_child_has_no_thread_and_closing_there_does_nothing() -> None:
    sampler = ResourceSampler(lambda *_: None, interval_s=0.01)
    sampler.start()
    try:
        child = os.fork()
        if not child:
            sampler.close()
            os._exit(0 if threading.active_count() == 1 else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        sampler.close()


class Refused(Exception):
    """What the driver raises."""


def library(**broken: bool) -> Any:
    def ask(name: str, answer: Any) -> Any:
        def call(*_: Any) -> Any:
            if broken.get(name):
                raise Refused(name)
            return answer

        return call

    return SimpleNamespace(
        NVMLError=Refused,
        nvmlInit=ask("init", None),
        nvmlShutdown=ask("shutdown", None),
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda number: f"device {number}",
        nvmlDeviceGetHandleByUUID=lambda uuid: f"device {uuid}",
        nvmlDeviceGetIndex=lambda _: 2,
        nvmlDeviceGetUtilizationRates=ask("utilization", SimpleNamespace(gpu=71, memory=30)),
        nvmlDeviceGetMemoryInfo=ask("memory", SimpleNamespace(used=5_000_000)),
        nvmlDeviceGetTemperature=ask("temperature", 45),
        nvmlDeviceGetPowerUsage=ask("power", 250_000),
        nvmlDeviceGetClockInfo=ask("clocks", 1980),
        nvmlDeviceGetCurrentClocksThrottleReasons=ask("throttling", 0x4 | 0x1),
    )


def test_a_device_tells_what_it_can() -> None:
    told = Nvml(library(power=True), {"gpu0": "device 0"})()
    assert told == {
        "gpu0.utilization_percent": 71.0,
        "gpu0.memory_utilization_percent": 30.0,
        "gpu0.memory_bytes": 5_000_000.0,
        "gpu0.temperature_celsius": 45.0,
        "gpu0.power_watts": None,
        "gpu0.sm_clock_mhz": 1980.0,
        "gpu0.memory_clock_mhz": 1980.0,
        "gpu0.throttled_power": 1.0,
        "gpu0.throttled_heat": 0.0,
        "gpu0.throttled_hardware": 0.0,
    }
    refusing = Nvml(library(throttling=True), {"gpu0": "device 0"})()
    assert refusing["gpu0.throttled_power"] is None
    older = library()
    del older.nvmlDeviceGetClockInfo
    assert Nvml(older, {"gpu0": "device 0"})()["gpu0.sm_clock_mhz"] is None
    assert Nvml(library(), {"gpu0": "device 0"})()["gpu0.power_watts"] == 250.0


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["gpu0", "gpu1", "gpu2"]),
        ("1", ["gpu1"]),
        ("2,0", ["gpu2", "gpu0"]),
        ("", []),
        ("-1", []),
        ("0,nonsense,1", ["gpu0"]),
        ("GPU-123", ["gpu2"]),
    ],
)
def test_only_devices_that_are_left_to_the_process_are_asked(visible: str | None, names: list[str]) -> None:
    assert list(visible_devices(library(), visible)) == names


@pytest.mark.parametrize(("limit", "told"), [("1073741824\n", 2**30), ("max\n", None), (None, None)])
def test_a_container_has_no_more_memory_than_its_limit(
    limit: str | None, told: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr("neuraldbg.capture.resources._MEMORY_LIMITS", ())
    whole = machine()["memory_bytes"]
    monkeypatch.setattr("neuraldbg.capture.resources._MEMORY_LIMITS", (str(tmp_path / "memory.max"),))
    assert machine()["memory_bytes"] == (whole if told is None else told)


def test_a_machine_without_a_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.capture.resources._NVIDIA", ("/nowhere",))
    assert Nvml.found() is None
    monkeypatch.setattr("neuraldbg.capture.resources._NVIDIA", ("/",))
    for module in (library(init=True), None):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        assert Nvml.found() is None


def test_a_debugged_script_records_its_resources(torch_server: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "began = time.monotonic()\n"
        "while time.monotonic() - began < 2.6:\n"
        "    optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step(); time.sleep(0.01)\n"
    )
    done = torch_server.neural("debug", "--headless", "--out", str(tmp_path / "run"), str(script), cwd=tmp_path)
    assert done.code == 0, done.stderr
    told = resources(open_trace(tmp_path / "run"))
    assert len(told["cpu"]["process_cpu_percent"]["values"]) >= 2
    assert min(told["memory"]["rss_bytes"]["values"]) > 1_000_000
    assert told["gpu"] == {} or all(name.startswith("gpu") for name in told["gpu"])
