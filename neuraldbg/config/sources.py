"""Where settings are written: flags, environment, two YAML files, pyproject.toml. Each gives what it holds of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from neuraldbg.config.schema import (
    KNOWN_KEYS,
    NEURAL_VARIABLES,
    SECTION_NAMES,
    SEED_KEYS,
    SETTINGS,
    SPELLINGS,
    Setting,
    edits,
    hint,
    setting_of,
    variable_of,
)
from neuraldbg.config.values import shown
from neuraldbg.errors import ConfigError

LARGEST_FILE_BYTES = 1_000_000
SHOWN_KEY_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Given:
    """One value that somebody wrote."""

    setting: Setting
    value: Any
    origin: str
    spelled: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """All that one place gave, and what the user should know about that place."""

    given: list[Given] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, written: object, origin: str, *, file: str | None = None) -> None:
        """Keep a value under a known spelling; raises with `origin` in front when it is not of the right form."""
        spelling = SPELLINGS.get(name)
        target = setting_of(name)
        form = spelling.form if spelling and spelling.form else target.form
        try:
            value = form.parse(written)
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from None
        given = Given(target, value, origin, name, file)
        self.given.insert(0, given) if name == target.key else self.given.append(given)


class UnreadableError(ConfigError):
    """A file whose text is not what its name promises; says why in a few words."""


class ReaderMissingError(ConfigError):
    """The package that reads a file is not installed; names it."""


def from_flags(flags: Mapping[str, object]) -> Source:
    """Keys or option names (`max_disk`, `--max-disk`, `thresholds.vanishing`); None means not given."""
    source = Source()
    by_flag = {each.flag.lstrip("-").replace("-", "_"): each.key for each in SETTINGS.values() if each.flag}
    for written, value in flags.items():
        if value is None:
            continue
        plain = written.lstrip("-").replace("-", "_")
        name = plain if plain in KNOWN_KEYS else by_flag.get(plain)
        if name is None:
            raise ConfigError(f"flag {written}: unknown key {plain!r}; {hint(plain, (*KNOWN_KEYS, *by_flag))}")
        source.add(name, value, f"flag {SETTINGS[name].flag or name}" if name in SETTINGS else f"flag {name}")
    return source


def from_environment(environ: Mapping[str, str]) -> Source:
    """`NEURALDBG_<KEY>`, dots as double underscores, before the `NEURAL_*` names; an empty value means not given."""
    source = Source()
    own = {variable_of(key): key for key in KNOWN_KEYS}
    for variable in sorted(environ):
        if variable.startswith("NEURALDBG_") and variable not in own:
            near = hint(variable, (*own, *NEURAL_VARIABLES, "NEURAL_CONFIG"))
            raise ConfigError(f"environment: unknown variable {shown_key(variable)!r}; {near}")
    for variable, key in [*own.items(), *NEURAL_VARIABLES.items()]:
        if environ.get(variable):
            source.add(key, environ[variable], variable)
    source.given.sort(key=lambda given: given.origin in NEURAL_VARIABLES)
    return source


def from_neural_config(path: Path, name: str) -> Source:
    """`neural_config.yaml`: every key in it must be known."""
    try:
        content = read_yaml(path)
    except ReaderMissingError as error:
        return Source(notes=[f"{name}: not read, because {error} is not installed"])
    except (UnreadableError, OSError) as error:
        raise ConfigError(f"{name}: {_reason(error)}") from None
    return strict(content, name)


def from_seed_config(path: Path, name: str) -> Source:
    """`config.yaml`: often the user's own, so only seed keys are read and nothing in it is an error."""
    try:
        content = read_yaml(path)
    except ReaderMissingError as error:
        ours = any(key.split(".")[0] in _text(path) for key in SEED_KEYS)
        return Source(notes=[f"{name}: not read, because {error} is not installed"] if ours else [])
    except (UnreadableError, OSError) as error:
        return Source(notes=[f"{name}: ignored, {_reason(error)}"])
    source = Source()
    for key, value in flattened(content if isinstance(content, Mapping) else {}, frozenset({"breakpoints"})):
        if key in SEED_KEYS:
            try:
                source.add(key, value, f"{name}: {key}", file=name)
            except ConfigError as error:
                source.notes.append(f"{error}; ignored")
        elif near := _close_seed_key(key):
            source.notes.append(f"{name}: {key!r} is not read; did you mean {near!r}?")
    return source


def from_pyproject(path: Path, name: str) -> Source:
    """`[tool.neuraldbg]`: every key in it must be known; the rest of the file is the user's."""
    try:
        text = _text(path)
        content = read_toml(text) if "neuraldbg" in text else {}
    except ReaderMissingError as error:
        return Source(notes=[f"{name}: [tool.neuraldbg] not read, because {error} is not installed"])
    except (UnreadableError, OSError) as error:
        return Source(notes=[f"{name}: ignored, {_reason(error)}"])
    tool = content.get("tool")
    if not isinstance(tool, Mapping) or "neuraldbg" not in tool:
        return Source()
    return strict(tool["neuraldbg"], f"{name} [tool.neuraldbg]")


def strict(content: object, name: str) -> Source:
    """The settings of a file that is ours alone: what is unknown in it is an error."""
    source = Source()
    if content is None:
        return source
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name}: expected keys and values, found {shown(content)}")
    for key, value in flattened(content, SECTION_NAMES):
        if key not in SETTINGS and key not in SPELLINGS:
            if key in SECTION_NAMES:
                inner = ", ".join(each.split(".")[1] for each in (*SETTINGS, *SPELLINGS) if each.startswith(f"{key}."))
                raise ConfigError(f"{name}: {key}: expected keys such as {inner}, found {shown(value)}")
            raise ConfigError(f"{name}: unknown key {key!r}; {hint(key, (*KNOWN_KEYS, *SECTION_NAMES))}")
        spelling = SPELLINGS.get(key)
        if spelling and spelling.original:
            use = f"read as {spelling.key}" if spelling.key else "not used here"
            source.notes.append(f"{name}: {key} is a key of the original command line, {use}")
        if spelling is None or spelling.key:
            source.add(key, value, f"{name}: {key}", file=name)
    return source


def flattened(content: Mapping[Any, object], sections: frozenset[str]) -> Iterator[tuple[str, object]]:
    """Dotted keys and their values; only our own sections are entered, and an empty one holds nothing."""
    for written, value in content.items():
        key = shown_key(written)
        if key in sections and isinstance(value, Mapping):
            yield from ((f"{key}.{shown_key(inner)}", each) for inner, each in value.items())
        elif key not in sections or value is not None:
            yield key, value


def shown_key(written: object) -> str:
    """A key in one short line; hyphens count as underscores."""
    text = written if isinstance(written, str) else shown(written)
    line = "".join(letter if letter.isprintable() else "?" for letter in text.replace("-", "_"))
    return line if len(line) <= SHOWN_KEY_LENGTH else line[:SHOWN_KEY_LENGTH] + "..."


def read_yaml(path: Path) -> object:
    try:
        import yaml
    except ImportError:
        raise ReaderMissingError("PyYAML") from None
    text = _text(path)

    def parse() -> object:
        try:
            return yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            where = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
            raise UnreadableError(f"not readable as YAML: {error.problem or error.context}{where}") from None
        except yaml.YAMLError as error:
            raise UnreadableError(f"not readable as YAML: {error}") from None

    return _parsed(parse, "YAML")


def read_toml(text: str) -> dict[str, Any]:
    for name in ("tomllib", "tomli"):  # the standard library has it from Python 3.11 on
        try:
            reader = import_module(name)
        except ImportError:
            continue
        content: dict[str, Any] = _parsed(partial(reader.loads, text), "TOML")
        return content
    raise ReaderMissingError("tomli")


def _parsed(parse: Callable[[], Any], language: str) -> Any:
    try:
        return parse()
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        # PyYAML answers some malformed scalars (`!!bool x`, `2001-99-99`) with plain Python errors
        raise UnreadableError(f"not readable as {language}: {error}") from None


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise UnreadableError(f"larger than {LARGEST_FILE_BYTES:,} bytes")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableError("not UTF-8 text") from None


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(text.split())


def _close_seed_key(key: str) -> str | None:
    """The seed key, or section of one, at most two edits away and on the same level."""
    level = key.count(".")
    known = {".".join(each.split(".")[: level + 1]) for each in SEED_KEYS if each.count(".") >= level} - {key}
    near = min(known, key=lambda each: (edits(key, each), each), default=None)
    return near if near is not None and len(key) < SHOWN_KEY_LENGTH and edits(key, near) <= 2 else None
