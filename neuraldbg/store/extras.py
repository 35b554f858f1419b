"""Packages that only some commands need: imported when used, and named with their extra where they are missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from neuraldbg.errors import ExtraMissing

EXTRA_OF: Final = {
    "pyarrow": "parquet",
    "duckdb": "duckdb",
    "ray": "ray",
    "pyspark": "spark",
    "opentelemetry.proto": "otel",
}


def needed(module: str, what: str) -> Any:
    """The module, for `what`; ExtraMissing says which extra brings it."""
    package = max((name for name in EXTRA_OF if f"{module}.".startswith(f"{name}.")), key=len)
    try:
        return import_module(module)
    except ImportError as error:
        raise ExtraMissing(what, package, EXTRA_OF[package], str(error)) from error


def is_installed(package: str) -> bool:
    """Without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def check_installed(package: str, what: str) -> None:
    """Refuses where a package is missing, without importing it."""
    if not is_installed(package):
        raise ExtraMissing(what, package, EXTRA_OF[package])
