"""Alerts: kept in order, and told to a log, a file, a webhook or the bell, the slow ones not by the training thread."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from neuraldbg.analysis.results import Result
from neuraldbg.debug.delivery import AlertFile, Delivery, Webhook
from neuraldbg.debug.settings import DebugConfig

log = logging.getLogger("neuraldbg")
MOST_PLACES = 10_000  # that are counted apart
SAID_PER_KIND = 5  # alerts of one kind and place that are logged one by one
WRITTEN_PER_KIND = 1000  # and that are written to the trace


class AlertSeverity(Enum):
    """How much an alert matters."""

    Info = "info"
    Warning = "warning"
    Critical = "critical"


_LEVELS = {
    AlertSeverity.Info: logging.INFO,
    AlertSeverity.Warning: logging.WARNING,
    AlertSeverity.Critical: logging.ERROR,
}


@dataclass(frozen=True, eq=False)
class TensorAlert(Result):
    """Something worth a look. `kind`: NaNValues, InfiniteValues, ExtremeValues, VanishingGradients, ExplodingGradients,
    MemoryUsage, ShapeMismatch, or that of whoever raised it."""

    kind: str
    severity: AlertSeverity
    message: str
    layer: str | None = None
    tensor_id: int | None = None
    step: int | None = None
    value: float | None = None
    timestamp: float = 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {**self.to_dict(), "severity": self.severity.value}


class Alerts:
    """Keeps the newest, counts all, and tells whoever is to be told. `told` hears of each (the trace)."""

    def __init__(self, config: DebugConfig, told: Callable[[TensorAlert], None], session_id: str = "") -> None:
        self._kept: deque[TensorAlert] = deque(maxlen=config.max_alerts)
        self._told = told
        self._logs, self._bell = config.alert_log, config.alert_bell
        self._session_id = session_id
        self._counts: dict[tuple[str, str | None], int] = {}
        self._lock = threading.Lock()
        self.settle: Callable[[], None] = lambda: None  # whoever still has some to raise does it now
        self.total = 0
        self.critical = 0
        ways: list[Callable[[dict[str, Any]], None]] = []
        if config.alert_file is not None:
            ways.append(AlertFile(Path(config.alert_file)))
        if config.alert_webhook is not None:
            ways.append(Webhook(config.alert_webhook))
        self.delivery = Delivery(ways)

    def __iter__(self) -> Iterator[TensorAlert]:
        self.settle()
        return iter(list(self._kept))

    def __len__(self) -> int:
        self.settle()
        return len(self._kept)

    def raised(self, alert: TensorAlert) -> None:
        if not alert.timestamp:
            alert = TensorAlert(**{**dict(alert), "timestamp": time.time()})
        place = (alert.kind, alert.layer if len(self._counts) < MOST_PLACES else None)
        with self._lock:
            self._kept.append(alert)
            self.total += 1
            self.critical += alert.severity is AlertSeverity.Critical
            often = self._counts[place] = self._counts.get(place, 0) + 1
        if often <= WRITTEN_PER_KIND:
            self._told(alert)
        if self._logs and often <= SAID_PER_KIND:
            more = " (further ones of this kind and place are only counted)" if often == SAID_PER_KIND else ""
            log.log(_LEVELS[alert.severity], "%s%s", alert.message, more)
        if self._bell and alert.severity is not AlertSeverity.Info and often == 1:
            ring()
        self.delivery.send({"session_id": self._session_id, **alert.plain()})

    def counts(self) -> dict[str, int]:
        """By kind."""
        self.settle()
        found: dict[str, int] = {}
        for (kind, _), count in self._counts.items():
            found[kind] = found.get(kind, 0) + count
        return found

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def close(self) -> None:
        self.delivery.close()


def ring() -> None:
    """Where somebody can hear it."""
    with suppress(OSError, ValueError, AttributeError):
        if sys.stderr.isatty():
            sys.stderr.write("\a")
            sys.stderr.flush()
