"""Every setting there is: its key, default, form and meaning. The classes below are the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from neuraldbg.config import values
from neuraldbg.config.values import Budget, Form
from neuraldbg.errors import ConfigError, nearest

CHARTS = ("execution_trace", "gradient_flow", "memory_profile")
BACKENDS = values.choice("auto", "pytorch", "tensorflow", "keras", "jax", "onnx", also={"torch": "pytorch"})
LOG_LEVELS = values.choice("debug", "info", "warning", "error", "critical", also={"warn": "warning"})
LAYERS = values.names("a layer name, glob or regex, or a list of them", separator=None)
CHART_NAMES = values.names(f"some of {', '.join(CHARTS)}", separator=",", known=CHARTS)


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the configuration."""

    key: str
    default: Any
    form: Form
    meaning: str
    flag: str | None = None

    @property
    def variable(self) -> str:
        return variable_of(self.key)


# what this version acts on; the other keys are checked and kept for the versions that will
IN_EFFECT = frozenset(
    {
        "alert_on_nan",
        "anomaly_sensitivity",
        "breakpoints.enabled",
        "breakpoints.pause_on_condition",
        "budget",
        "cache_dir",
        "dashboard.browser",
        "dashboard.charts",
        "dashboard.enabled",
        "dashboard.max_history",
        "dashboard.refresh_rate",
        "dashboard.theme",
        "deterministic",
        "fail_on",
        "headless",
        "history.anomaly",
        "history.inspector",
        "host",
        "layers",
        "max_cache",
        "max_disk",
        "out",
        "port",
        "record",
        "record_memory",
        "ship_every",
        "ship_rest",
        "thresholds.activation",
        "thresholds.exploding",
        "thresholds.vanishing",
    }
)


def variable_of(key: str) -> str:
    return "NEURALDBG_" + key.upper().replace(".", "__")


def about(form: Form, meaning: str, flag: str | None = None) -> dict[str, Any]:
    return {"form": form, "meaning": meaning, "flag": flag}


@dataclass(frozen=True, slots=True)
class Dashboard:
    enabled: bool = field(default=True, metadata=about(values.BOOLEAN, "serve the page", "--dashboard"))
    browser: bool = field(
        default=True,
        metadata=about(values.BOOLEAN, "open the page in a browser, where a terminal and a screen are", "--no-browser"),
    )
    theme: str = field(
        default="dark", metadata=about(values.choice("dark", "light", "auto"), "colours of the page", "--theme")
    )
    refresh_rate: float = field(default=1.0, metadata=about(values.SECONDS, "seconds between two updates of the page"))
    max_history: int = field(default=1000, metadata=about(values.COUNT, "points a chart holds"))
    charts: tuple[str, ...] = field(default=CHARTS, metadata=about(CHART_NAMES, "charts shown, in this order"))


@dataclass(frozen=True, slots=True)
class Breakpoints:
    enabled: bool = field(default=True, metadata=about(values.BOOLEAN, "whether breakpoints are looked at"))
    pause_on_condition: bool = field(default=True, metadata=about(values.BOOLEAN, "pause on a hit; false only logs it"))


@dataclass(frozen=True, slots=True)
class History:
    inspector: int = field(default=100, metadata=about(values.COUNT, "executions of a layer that the inspector lists"))
    anomaly: int = field(
        default=1000, metadata=about(values.COUNT, "samples per layer that anomaly detection looks back on")
    )


OWN_SCALE = values.optional(values.THRESHOLD, "absent: judged against the layer's own past")


@dataclass(frozen=True, slots=True)
class Thresholds:
    vanishing: float | None = field(
        default=None, metadata=about(OWN_SCALE, "gradient norm below which a layer vanishes", "--vanishing-threshold")
    )
    exploding: float | None = field(
        default=None, metadata=about(OWN_SCALE, "gradient norm above which a layer explodes", "--exploding-threshold")
    )
    activation: float | None = field(
        default=None,
        metadata=about(
            values.optional(values.THRESHOLD, "absent: exactly zero"),
            "activation below which a unit is inactive",
            "--activation-threshold",
        ),
    )


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one run, where each came from, and what the user should be told about them."""

    budget: Budget = field(
        default=Budget(0.01),
        metadata=about(values.BUDGET, "share of the run's time that observing may take", "--budget"),
    )
    layers: tuple[str, ...] = field(
        default=(), metadata=about(LAYERS, "layers to observe; none named means all", "--layers")
    )
    out: Path | None = field(
        default=None,
        metadata=about(
            values.optional(values.PATH, "absent: neuraldbg_runs/"),
            "directory of the run, or the URL of an object store to ship it to",
            "--out",
        ),
    )
    ship_every: float = field(
        default=60.0, metadata=about(values.SECONDS, "seconds that rows wait at most before they are shipped")
    )
    ship_rest: float = field(
        default=25.0,
        metadata=about(values.SECONDS, "seconds after the run in which the rest is shipped; 50 at most"),
    )
    max_disk: int = field(
        default=2_000_000_000,
        metadata=about(values.SIZE, "disk a run may take; the oldest part goes first", "--max-disk"),
    )
    record: str = field(
        default="auto",
        metadata=about(values.RECORDING, "keep what making steps again needs (neural replay)", "--record"),
    )
    record_memory: int = field(
        default=512_000_000,
        metadata=about(values.SIZE, "most that a recording takes on disk, and waiting in memory", "--record-memory"),
    )
    backend: str = field(
        default="auto", metadata=about(BACKENDS, "framework; auto is the one the script imports", "--backend")
    )
    deterministic: bool = field(
        default=False, metadata=about(values.BOOLEAN, "ask the framework for repeatable kernels", "--deterministic")
    )
    headless: bool = field(default=False, metadata=about(values.BOOLEAN, "no page and no prompt", "--headless"))
    host: str = field(
        default="127.0.0.1",
        metadata=about(values.ADDRESS, "address of the page; off loopback it needs a token", "--host"),
    )
    port: int = field(
        default=8050, metadata=about(values.PORT, "port of the page; if taken, the next free one", "--port")
    )
    anomaly_sensitivity: float = field(
        default=0.95, metadata=about(values.SHARE, "higher gives fewer alarms; 0.95 is a z-score of 3")
    )
    alert_on_nan: bool = field(
        default=False, metadata=about(values.BOOLEAN, "stop the run at its first NaN", "--alert-on-nan")
    )
    fail_on: str | None = field(
        default=None,
        metadata=about(
            values.optional(values.choice("warning", "critical"), "absent: never"),
            "verdict from which the exit code is 6",
            "--fail-on",
        ),
    )
    log_level: str = field(
        default="warning", metadata=about(LOG_LEVELS, "least severe message of our own that is logged")
    )
    cache_dir: Path | None = field(
        default=None,
        metadata=about(values.optional(values.PATH, "absent: the user's cache"), "where fetched runs are kept"),
    )
    max_cache: int = field(
        default=2_000_000_000,
        metadata=about(values.SIZE, "disk that runs fetched from elsewhere may take; the least used go first"),
    )
    dashboard: Dashboard = field(default_factory=Dashboard)
    breakpoints: Breakpoints = field(default_factory=Breakpoints)
    history: History = field(default_factory=History)
    thresholds: Thresholds = field(default_factory=Thresholds)
    notes: tuple[str, ...] = field(default=(), compare=False)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def websocket_interval(self) -> float:
        """`dashboard.refresh_rate`, in milliseconds."""
        return self.dashboard.refresh_rate * 1000

    def value(self, key: str) -> Any:
        found: Any = self
        for part in setting_of(key).key.split("."):
            found = getattr(found, part)
        return found

    def origin(self, key: str) -> str:
        """Where the value of `key` came from, in the words of messages; "default" when nobody gave one."""
        return self.origins.get(setting_of(key).key, "default")


SECTIONS: dict[str, type[Any]] = {
    "dashboard": Dashboard,
    "breakpoints": Breakpoints,
    "history": History,
    "thresholds": Thresholds,
}


def _settings(owner: type[Any], prefix: str = "") -> Iterator[Setting]:
    assert is_dataclass(owner)
    for each in fields(owner):
        if "form" in each.metadata:
            yield Setting(prefix + each.name, each.default, **each.metadata)


SETTINGS: dict[str, Setting] = {
    each.key: each
    for owner, prefix in [(Config, ""), *((section, f"{name}.") for name, section in SECTIONS.items())]
    for each in _settings(owner, prefix)
}


@dataclass(frozen=True, slots=True)
class Spelling:
    """Another name under which a setting may be written; `key` is None where nothing here corresponds to it."""

    name: str
    key: str | None
    form: Form | None = None  # None: the setting's own
    original: bool = False  # a documented key of the original command line, answered with a note


INTERVAL = Spelling("websocket_interval", "dashboard.refresh_rate", values.MILLISECONDS)
SPELLINGS: dict[str, Spelling] = {
    each.name: each
    for each in (
        INTERVAL,
        Spelling("default_backend", "backend", original=True),
        Spelling("debug.default_port", "port", original=True),
        Spelling("debug.theme", "dashboard.theme", original=True),
        Spelling("visualization.default_format", None, original=True),
        Spelling("visualization.auto_open", None, original=True),
        Spelling("tracking.auto_track", None, original=True),
        Spelling("tracking.experiment_dir", None, original=True),
    )
}
SECTION_NAMES = frozenset(name.split(".")[0] for name in (*SETTINGS, *SPELLINGS) if "." in name)
KNOWN_KEYS = (*SETTINGS, INTERVAL.name)
SEED_KEYS = ("websocket_interval", "anomaly_sensitivity", "breakpoints.enabled", "breakpoints.pause_on_condition")
NEURAL_VARIABLES = {"NEURAL_BACKEND": "backend", "NEURAL_CACHE_DIR": "cache_dir", "NEURAL_LOG_LEVEL": "log_level"}


def setting_of(name: str) -> Setting:
    """The setting that `name` means, under its own or another spelling."""
    spelling = SPELLINGS.get(name)
    key = spelling.key if spelling else name
    if key not in SETTINGS:
        raise ConfigError(f"unknown key {name!r}; {hint(name, KNOWN_KEYS)}")
    return SETTINGS[key]


def hint(name: str, known: tuple[str, ...]) -> str:
    by_last_part = {each.rpartition(".")[2]: each for each in known}
    near = nearest(name, (*known, *by_last_part), 1)
    if near:
        return f"did you mean {near[0] if near[0] in known else by_last_part[near[0]]!r}?"
    return f"the nearest known one is {min(known, key=lambda each: edits(name, each))!r}"


def edits(first: str, second: str) -> int:
    """Letters to insert, delete or replace to make one text of the other."""
    row = list(range(len(second) + 1))
    for done, letter in enumerate(first, 1):
        diagonal, row[0] = row[0], done
        for at, other in enumerate(second, 1):
            diagonal, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, diagonal + (letter != other))
    return row[-1]
