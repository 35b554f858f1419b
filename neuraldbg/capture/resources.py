"""What the process and its machine use, read the cheapest way the platform offers. None where it offers none.

`rss_bytes` and `device_bytes` are asked at sampled updates; `ResourceSampler` looks once a second on its own
thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

INTERVAL_S: Final = 1.0
PREFIX: Final = "resource."  # of the series
_JOIN_S: Final = 2.0  # a driver that hangs may cost the close this much, not more
_SM, _MEMORY = 1, 2  # clocks, by NVML's numbers
THROTTLED: Final = {"power": 0x4 | 0x80, "heat": 0x20 | 0x40, "hardware": 0x8}  # bits of NVML's reasons
_MEMORY_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NVIDIA: Final = ("/dev/nvidiactl", "/dev/dxg")
Reading = Mapping[str, float | None]


def rss_bytes() -> int | None:
    """Resident memory of the process. Asked in the midst of a training: Python's files take three more calls of the
    system."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 256).split()[1]) * _page_bytes()
        finally:
            os.close(file)
    except (OSError, ValueError, AttributeError, IndexError):
        return _rss_by_psutil()


@cache
def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def _rss_by_psutil() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


class _MallInfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _heap_reader() -> Callable[[], int] | None:
    """glibc tells what is allocated, to the byte, in half a microsecond; other C libraries do not."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return None
    mallinfo.restype = _MallInfo

    def read() -> int:
        told = mallinfo()
        return int(told.uordblks + told.hblkhd)

    return read


@cache
def _reader() -> Callable[[], int] | None:
    return _heap_reader()


def host_allocated_bytes() -> int | None:
    """Bytes that the process has allocated and not freed; unlike resident memory it falls with every free. None where
    the C library does not tell."""
    read = _reader()
    return None if read is None else read()


def machine() -> dict[str, int | None]:
    """Cores this process may use, and memory of the machine, or of the container it is in."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 0
    try:
        memory: int | None = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        memory = None
    limits = [limit for limit in (memory, _memory_limit()) if limit is not None]
    return {"cores": cores or None, "memory_bytes": min(limits, default=None)}


def _memory_limit() -> int | None:
    """What a container leaves to its processes; None where there is no such limit."""
    for path in _MEMORY_LIMITS:
        try:
            with open(path, "rb") as file:
                return int(file.read())
        except (OSError, ValueError):  # no container, or "max"
            continue
    return None


def device_total_bytes() -> int | None:
    """Memory of the CUDA devices that something is allocated on, else of the current one; None without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    used = [one for one in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(one)]
    devices = used or [torch.cuda.current_device()]
    return sum(int(torch.cuda.get_device_properties(one).total_memory) for one in devices)


def device_bytes() -> int | None:
    """Bytes that torch has allocated on all CUDA devices; None when CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count()))


def device_memory(device: int | None = None) -> dict[str, int] | None:
    """Bytes on one CUDA device, or on all: allocated, reserved, peak; None when CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    told = {"allocated": 0, "reserved": 0, "peak": 0}
    for one in range(torch.cuda.device_count()) if device is None else (device,):
        read = torch.cuda.memory_stats_as_nested_dict(one)  # all three at once; the flat form takes ten times as long
        allocated, reserved = ((read.get(f"{name}_bytes") or {}).get("all", {}) for name in ("allocated", "reserved"))
        told["allocated"] += int(allocated.get("current", 0))
        told["peak"] += int(allocated.get("peak", 0))
        told["reserved"] += int(reserved.get("current", 0))
    return told


def device_names() -> list[str]:
    """CUDA devices this process may use; none when torch is not loaded. Asking does not begin to use them."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [str(torch.cuda.get_device_name(number)) for number in range(torch.cuda.device_count())]


class ResourceSampler:
    """Hands `record` what is used, by name, once a second, until `close`. What cannot be read is not recorded."""

    def __init__(
        self,
        record: Callable[[str, float], None],
        *,
        interval_s: float = INTERVAL_S,
        readers: Callable[[], list[Callable[[], Reading]]] | None = None,
    ) -> None:
        self._record = record
        self._interval_s = interval_s
        self._readers = readers or _all_readers
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neuraldbg-resources", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. In a forked child there is none, and nothing to do."""
        if os.getpid() == self._pid and self._thread.ident is not None:
            self._stop.set()
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        readers = self._readers()  # here, not at the start: a driver takes its time
        for read in readers:
            read()  # shares of time are those since the last look
        while not self._stop.wait(self._interval_s):
            for read in readers:
                for name, value in read().items():
                    if value is not None:
                        self._record(PREFIX + name, value)
        for read in readers:
            if isinstance(read, Nvml):
                read.close()


def _all_readers() -> list[Callable[[], Reading]]:
    gpus = Nvml.found()
    return [Processor(), lambda: {"rss_bytes": rss_bytes()}, *([gpus] if gpus is not None else [])]


class Processor:
    """How busy the machine and this process were since the last look: 100 % is every core, or one core."""

    def __init__(self) -> None:
        self._wall_s = self._own_s = 0.0
        self._machine: tuple[float, float] | None = None

    def __call__(self) -> Reading:
        wall_s, own_s, machine = time.monotonic(), time.process_time(), _busy_and_all()
        passed = wall_s - self._wall_s
        share = None if not self._wall_s or passed <= 0 else 100 * (own_s - self._own_s) / passed
        busy = None
        if machine is not None and self._machine is not None and machine[1] > self._machine[1]:
            busy = 100 * (machine[0] - self._machine[0]) / (machine[1] - self._machine[1])
        self._wall_s, self._own_s, self._machine = wall_s, own_s, machine
        return {"cpu_percent": busy, "process_cpu_percent": share}


def _busy_and_all() -> tuple[float, float] | None:
    """Seconds (or ticks) all cores were busy, and all there were."""
    try:
        with open("/proc/stat", "rb") as file:
            ticks = [int(each) for each in file.readline().split()[1:9]]
        return float(sum(ticks) - ticks[3] - ticks[4]), float(sum(ticks))  # less idle and waiting for a disk
    except (OSError, ValueError, IndexError):
        pass
    try:
        import psutil
    except ImportError:
        return None
    times = psutil.cpu_times()
    return float(sum(times) - times.idle), float(sum(times))


class Nvml:
    """The NVIDIA devices of this process, asked through the driver's library."""

    def __init__(self, library: Any, devices: Mapping[str, Any]) -> None:
        self._library = library
        self._devices = devices

    @classmethod
    def found(cls) -> Nvml | None:
        """None where there is no driver or no `nvidia-ml-py`."""
        if sys.platform != "win32" and not any(map(os.path.exists, _NVIDIA)):
            return None
        try:
            import pynvml

            pynvml.nvmlInit()
        except (ImportError, OSError, AttributeError):
            return None
        except pynvml.NVMLError:
            return None
        try:
            return cls(pynvml, visible_devices(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES")))
        except pynvml.NVMLError:
            return None

    def __call__(self) -> Reading:
        found: dict[str, float | None] = {}
        for name, device in self._devices.items():
            found[f"{name}.utilization_percent"] = self._ask("nvmlDeviceGetUtilizationRates", device, "gpu")
            found[f"{name}.memory_utilization_percent"] = self._ask("nvmlDeviceGetUtilizationRates", device, "memory")
            found[f"{name}.memory_bytes"] = self._ask("nvmlDeviceGetMemoryInfo", device, "used")
            found[f"{name}.temperature_celsius"] = self._ask("nvmlDeviceGetTemperature", device, None, 0)
            milliwatts = self._ask("nvmlDeviceGetPowerUsage", device)
            found[f"{name}.power_watts"] = None if milliwatts is None else milliwatts / 1000
            found[f"{name}.sm_clock_mhz"] = self._ask("nvmlDeviceGetClockInfo", device, None, _SM)
            found[f"{name}.memory_clock_mhz"] = self._ask("nvmlDeviceGetClockInfo", device, None, _MEMORY)
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", device)
            for reason, bits in THROTTLED.items():
                found[f"{name}.throttled_{reason}"] = None if reasons is None else float(bool(int(reasons) & bits))
        return found

    def _ask(self, function: str, device: Any, part: str | None = None, *more: Any) -> float | None:
        """None where this device does not tell."""
        try:
            answer = getattr(self._library, function)(device, *more)
            return float(answer if part is None else getattr(answer, part))
        except (self._library.NVMLError, AttributeError):  # an older library does not know every question
            return None

    def close(self) -> None:
        with suppress(self._library.NVMLError):
            self._library.nvmlShutdown()


def visible_devices(library: Any, visible: str | None) -> dict[str, Any]:
    """By name, `gpu0` on; only those CUDA_VISIBLE_DEVICES leaves to this process."""
    count = library.nvmlDeviceGetCount()
    if visible is None:
        return {f"gpu{number}": library.nvmlDeviceGetHandleByIndex(number) for number in range(count)}
    found = {}
    for entry in map(str.strip, visible.split(",")):
        if entry.isdigit() and int(entry) < count:
            found[f"gpu{entry}"] = library.nvmlDeviceGetHandleByIndex(int(entry))
        elif entry.startswith(("GPU-", "MIG-")):
            handle = library.nvmlDeviceGetHandleByUUID(entry)
            found[f"gpu{library.nvmlDeviceGetIndex(handle)}"] = handle
        else:
            break  # as CUDA does: what comes after a wrong entry is not visible
    return found
