"""Memory of this process, read the cheapest way the platform offers. None where it offers none."""

from __future__ import annotations

import os
import sys


def rss_bytes() -> int | None:
    """Resident memory of the process."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError, IndexError):
        return _rss_by_psutil()


def _rss_by_psutil() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


def device_bytes() -> int | None:
    """Bytes that torch has allocated on all CUDA devices; None when CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count()))
