"""The configuration of a run: one schema, read from flags, environment and files."""

from neuraldbg.config.loading import load_config
from neuraldbg.config.reference import reference_table
from neuraldbg.config.schema import SETTINGS, Breakpoints, Config, Dashboard, History, Setting, Thresholds
from neuraldbg.config.values import Budget, parse_budget, parse_bytes

__all__ = [
    "SETTINGS",
    "Breakpoints",
    "Budget",
    "Config",
    "Dashboard",
    "History",
    "Setting",
    "Thresholds",
    "load_config",
    "parse_budget",
    "parse_bytes",
    "reference_table",
]
