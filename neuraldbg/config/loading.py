"""One configuration out of all sources: the first that gives a value wins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuraldbg.config.schema import INTERVAL, SECTIONS, SETTINGS, Config
from neuraldbg.config.sources import (
    Given,
    Source,
    from_environment,
    from_flags,
    from_neural_config,
    from_pyproject,
    from_seed_config,
)
from neuraldbg.errors import ConfigError


def load_config(
    flags: Mapping[str, object] | None = None,
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Flags, environment, `neural_config.yaml`, `config.yaml`, `[tool.neuraldbg]`, defaults. Files of `cwd` only."""
    environ = os.environ if environ is None else environ
    sources = [from_flags(flags or {}), from_environment(environ), *_files(cwd or Path.cwd(), environ)]
    given = [each for source in sources for each in source.given]
    chosen: dict[str, Given] = {}
    for each in given:
        chosen.setdefault(each.setting.key, each)
    notes = [note for source in sources for note in source.notes] + _interval_conflict(given, chosen)
    return _assembled(chosen, tuple(dict.fromkeys(notes)))


def _files(cwd: Path, environ: Mapping[str, str]) -> list[Source]:
    named = environ.get("NEURAL_CONFIG")
    own_name = named or "neural_config.yaml"
    own = cwd / own_name
    present = _is_file(own)
    if named and not present:
        raise ConfigError(f"NEURAL_CONFIG: no file {named!r}")
    sources = [from_neural_config(own, own_name)] if present else []
    for name, read in (("config.yaml", from_seed_config), ("pyproject.toml", from_pyproject)):
        path = cwd / name
        if _is_file(path) and not (present and path.resolve() == own.resolve()):
            sources.append(read(path, name))
    return sources


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a folder we may not search, a name too long or with a zero byte in it
        return False


def _interval_conflict(given: list[Given], chosen: Mapping[str, Given]) -> list[str]:
    """`websocket_interval` and `dashboard.refresh_rate` are one setting: files that disagree get a note."""
    assert INTERVAL.key is not None
    used = chosen.get(INTERVAL.key)
    if used is None:
        return []
    others = [each for each in given if each.setting is used.setting and each.spelled != used.spelled]
    return [
        f"{used.origin} ({used.value:g} s) and {other.origin} ({other.value:g} s) "
        f"are the same setting and disagree; using {used.value:g} s"
        for other in others
        if other.value != used.value and (other.file is None) == (used.file is None)
    ]


def _assembled(chosen: Mapping[str, Given], notes: tuple[str, ...]) -> Config:
    top: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, given in chosen.items():
        section, dot, name = key.rpartition(".")
        if dot:
            inner[section][name] = given.value
        else:
            top[key] = given.value
    sections = {name: SECTIONS[name](**values) for name, values in inner.items()}
    origins = {key: chosen[key].origin for key in SETTINGS if key in chosen}
    return Config(**top, **sections, notes=notes, origins=origins)
