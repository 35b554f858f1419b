"""Where settings come from, who wins, and what the user is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from neuraldbg.config import SETTINGS, Config, load_config, reference_table
from neuraldbg.config.schema import KNOWN_KEYS, NEURAL_VARIABLES, SEED_KEYS, edits, setting_of, variable_of
from neuraldbg.errors import ConfigError

SAMPLES: dict[str, object] = {  # for every key a value that is not the default
    "budget": "5%",
    "layers": ["encoder.*"],
    "out": "elsewhere",
    "max_disk": "1GB",
    "record": "full",
    "record_memory": "256MB",
    "backend": "pytorch",
    "deterministic": True,
    "headless": True,
    "host": "0.0.0.0",
    "port": 8888,
    "anomaly_sensitivity": 0.9,
    "alert_on_nan": True,
    "fail_on": "warning",
    "log_level": "debug",
    "cache_dir": "cache",
    "max_cache": "1GB",
    "ship_every": 5.0,
    "ship_rest": 3.0,
    "dashboard.enabled": False,
    "dashboard.browser": False,
    "dashboard.theme": "light",
    "dashboard.refresh_rate": 2.5,
    "dashboard.max_history": 50,
    "dashboard.charts": ["gradient_flow"],
    "breakpoints.enabled": False,
    "breakpoints.pause_on_condition": False,
    "history.inspector": 7,
    "history.anomaly": 70,
    "thresholds.vanishing": 1e-5,
    "thresholds.exploding": 100.0,
    "thresholds.activation": 0.01,
    "websocket_interval": 250,
}


def nested(key: str, value: object) -> dict[str, Any]:
    section, dot, name = key.partition(".")
    return {section: {name: value}} if dot else {key: value}


def write_yaml(path: Path, key: str, value: object) -> None:
    path.write_text(yaml.safe_dump(nested(key, value)))


def as_toml(key: str, value: object) -> str:
    shown = str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
    return f"[tool.neuraldbg]\n{key} = {shown}\n"


def as_variable(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def load(cwd: Path, flags: Mapping[str, object] | None = None, /, **environ: str) -> Config:
    return load_config(flags, cwd=cwd, environ=environ)


def expected(key: str) -> object:
    return SAMPLES[key] / 1000 if key == "websocket_interval" else setting_of(key).form.parse(SAMPLES[key])  # type: ignore[operator]


def test_the_samples_cover_every_key() -> None:
    assert set(SAMPLES) == set(KNOWN_KEYS)


def test_without_any_source_every_value_is_its_default(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config == Config()
    assert config.notes == ()
    assert {key: config.value(key) for key in SETTINGS} == {key: each.default for key, each in SETTINGS.items()}
    assert {config.origin(key) for key in KNOWN_KEYS} == {"default"}
    assert (str(config.budget), config.max_disk, config.port) == ("1%", 2_000_000_000, 8050)
    assert (config.history.inspector, config.history.anomaly) == (100, 1000)


@pytest.mark.parametrize("key", KNOWN_KEYS)
class TestEveryKey:
    def test_is_read_from_flags(self, key: str, tmp_path: Path) -> None:
        config = load(tmp_path, {key: SAMPLES[key]})
        assert config.value(key) == expected(key)
        flag = setting_of(key).flag
        assert config.origin(key) == f"flag {flag or key}"
        if flag:
            assert (
                load(tmp_path, {flag: SAMPLES[key]})
                == load(tmp_path, {flag[2:].replace("-", "_"): SAMPLES[key]})
                == config
            )

    def test_is_read_from_the_environment(self, key: str, tmp_path: Path) -> None:
        config = load(tmp_path, **{variable_of(key): as_variable(SAMPLES[key])})
        assert config.value(key) == expected(key)
        assert config.origin(key) == "NEURALDBG_" + key.upper().replace(".", "__")

    def test_is_read_from_neural_config(self, key: str, tmp_path: Path) -> None:
        write_yaml(tmp_path / "neural_config.yaml", key, SAMPLES[key])
        config = load(tmp_path)
        assert config.value(key) == expected(key)
        assert config.origin(key) == f"neural_config.yaml: {key}"

    def test_is_read_from_pyproject(self, key: str, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text(as_toml(key, SAMPLES[key]))
        config = load(tmp_path)
        assert config.value(key) == expected(key)
        assert config.origin(key) == f"pyproject.toml [tool.neuraldbg]: {key}"

    def test_is_read_from_config_yaml_only_if_a_seed_names_it_there(self, key: str, tmp_path: Path) -> None:
        write_yaml(tmp_path / "config.yaml", key, SAMPLES[key])
        config = load(tmp_path)
        assert config.notes == ()
        assert config.value(key) == (expected(key) if key in SEED_KEYS else Config().value(key))
        assert config.origin(key) == (f"config.yaml: {key}" if key in SEED_KEYS else "default")


def test_each_source_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    key, variable = "anomaly_sensitivity", "NEURALDBG_ANOMALY_SENSITIVITY"
    assert load(tmp_path).anomaly_sensitivity == 0.95
    (tmp_path / "pyproject.toml").write_text(as_toml(key, 0.1))
    assert load(tmp_path).anomaly_sensitivity == 0.1
    write_yaml(tmp_path / "config.yaml", key, 0.2)
    assert load(tmp_path).anomaly_sensitivity == 0.2
    write_yaml(tmp_path / "neural_config.yaml", key, 0.3)
    assert load(tmp_path).anomaly_sensitivity == 0.3
    assert load(tmp_path, **{variable: "0.4"}).anomaly_sensitivity == 0.4
    config = load(tmp_path, {key: 0.5}, **{variable: "0.4"})
    assert config.anomaly_sensitivity == 0.5
    assert config.notes == ()


def test_flags_that_were_not_given_change_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, {"budget": None, "port": None}, NEURALDBG_PORT="") == Config()


@pytest.mark.parametrize(("variable", "key"), NEURAL_VARIABLES.items())
def test_the_original_variables_are_read_after_our_own(variable: str, key: str, tmp_path: Path) -> None:
    value = as_variable(SAMPLES[key])
    config = load(tmp_path, **{variable: value})
    assert (config.value(key), config.origin(key)) == (expected(key), variable)
    other = {"backend": "jax", "cache_dir": "other", "log_level": "error"}[key]
    both = load(tmp_path, **{variable: value, variable_of(key): other})
    assert str(both.value(key)) == other


def test_neural_config_names_the_file_to_read_instead(tmp_path: Path) -> None:
    write_yaml(tmp_path / "neural_config.yaml", "port", 1)
    write_yaml(tmp_path / "mine.yml", "port", 2)
    config = load(tmp_path, NEURAL_CONFIG="mine.yml")
    assert (config.port, config.origin("port")) == (2, "mine.yml: port")
    with pytest.raises(ConfigError, match=r"^NEURAL_CONFIG: no file 'absent.yaml'$"):
        load(tmp_path, NEURAL_CONFIG="absent.yaml")


def test_only_the_given_folder_is_searched(tmp_path: Path) -> None:
    write_yaml(tmp_path / "neural_config.yaml", "port", 1)
    (tmp_path / "inner").mkdir()
    assert load(tmp_path / "inner").port == 8050


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("bugdet", "budget"),
        ("dashboard.them", "dashboard.theme"),
        ("refresh", "dashboard.refresh_rate"),
        ("zzz", "nearest"),
    ],
)
def test_an_unknown_key_names_its_place_and_the_nearest_one(key: str, near: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^flag {key}: unknown key '{key}'; .*{near}"):
        load(tmp_path, {key: 1})
    with pytest.raises(ConfigError, match=r"^environment: unknown variable 'NEURALDBG_\w+'; .*NEURAL"):
        load(tmp_path, **{variable_of(key): "1"})
    (tmp_path / "pyproject.toml").write_text(as_toml(key, 1))
    with pytest.raises(ConfigError, match=rf"^pyproject.toml \[tool.neuraldbg\]: unknown key '{key}'; .*{near}"):
        load(tmp_path)
    write_yaml(tmp_path / "neural_config.yaml", key, 1)
    with pytest.raises(ConfigError, match=rf"^neural_config.yaml: unknown key '{key}'; .*{near}"):
        load(tmp_path)


def test_a_bad_value_names_its_place_what_was_expected_and_what_was_found(tmp_path: Path) -> None:
    found = "expected a port from 0 .any free one. to 65535, found"
    with pytest.raises(ConfigError, match=f"^flag --port: {found} 'x'$"):
        load(tmp_path, {"port": "x"})
    with pytest.raises(ConfigError, match=f"^NEURALDBG_PORT: {found} 'x'$"):
        load(tmp_path, NEURALDBG_PORT="x")
    (tmp_path / "pyproject.toml").write_text(as_toml("port", -1))
    with pytest.raises(ConfigError, match=rf"^pyproject.toml \[tool.neuraldbg\]: port: {found} -1$"):
        load(tmp_path)
    write_yaml(tmp_path / "neural_config.yaml", "port", None)
    with pytest.raises(ConfigError, match=f"^neural_config.yaml: port: {found} nothing$"):
        load(tmp_path)


def test_a_section_that_is_no_section_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "neural_config.yaml").write_text("dashboard:\n")
    assert load(tmp_path) == Config()
    (tmp_path / "neural_config.yaml").write_text("dashboard: dark\n")
    with pytest.raises(
        ConfigError, match=r"^neural_config.yaml: dashboard: expected keys such as .*theme.*, found 'dark'$"
    ):
        load(tmp_path)


def test_hyphens_and_dotted_keys_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "neural_config.yaml").write_text("max-disk: 3GB\ndashboard.theme: light\n")
    config = load(tmp_path)
    assert (config.max_disk, config.dashboard.theme) == (3_000_000_000, "light")


def test_yaml_off_and_exponents_mean_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "neural_config.yaml").write_text("budget: off\nthresholds: {vanishing: 1e-5}\n")
    config = load(tmp_path)
    assert config.budget.off
    assert config.thresholds.vanishing == 1e-5


def test_a_users_own_config_yaml_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {name: resnet}\nbudget: 7\nport: 1\nbreakpoints: [1, 2]\n5: x\n")
    assert load(tmp_path).notes == ()
    assert load(tmp_path) == Config()


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("anomaly_sensitivty: 0.9", "anomaly_sensitivty", "anomaly_sensitivity"),
        ("websocket_intervall: 9", "websocket_intervall", "websocket_interval"),
        ("breakpoint: {enabled: true}", "breakpoint", "breakpoints"),
        ("breakpoints: {enable: true}", "breakpoints.enable", "breakpoints.enabled"),
    ],
)
def test_a_near_miss_in_config_yaml_is_noted(text: str, key: str, near: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert load(tmp_path).notes == (f"config.yaml: {key!r} is not read; did you mean {near!r}?",)


def test_a_bad_seed_value_in_config_yaml_is_noted_and_ignored(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("anomaly_sensitivity: high\nwebsocket_interval: 500\n")
    config = load(tmp_path)
    assert config.notes == ("config.yaml: anomaly_sensitivity: expected a number from 0 to 1, found 'high'; ignored",)
    assert (config.anomaly_sensitivity, config.dashboard.refresh_rate) == (0.95, 0.5)


def test_unparsable_files_are_an_error_only_where_they_are_ours(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: [1\n")
    (tmp_path / "pyproject.toml").write_text("[tool.neuraldbg\n")
    notes = load(tmp_path).notes
    assert [note.split(",")[0] for note in notes] == ["config.yaml: ignored", "pyproject.toml: ignored"]
    assert all("\n" not in note for note in notes)
    (tmp_path / "neural_config.yaml").write_text("port: 1\nport: : 2\n")
    with pytest.raises(ConfigError, match=r"^neural_config.yaml: not readable as YAML: .*line 2"):
        load(tmp_path)


def test_a_pyproject_without_our_name_is_never_parsed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[broken\n")
    assert load(tmp_path).notes == ()


@pytest.mark.parametrize(("rate", "interval", "notes"), [(2.0, 500, 1), (0.5, 500, 0)])
def test_two_spellings_of_the_update_rate(rate: float, interval: int, notes: int, tmp_path: Path) -> None:
    write_yaml(tmp_path / "neural_config.yaml", "dashboard.refresh_rate", rate)
    write_yaml(tmp_path / "config.yaml", "websocket_interval", interval)
    config = load(tmp_path)
    assert (config.dashboard.refresh_rate, config.websocket_interval) == (rate, rate * 1000)
    assert len(config.notes) == notes
    for note in config.notes:
        assert "neural_config.yaml: dashboard.refresh_rate (2 s)" in note
        assert "config.yaml: websocket_interval (0.5 s)" in note
        assert "using 2 s" in note
    assert load(tmp_path, NEURALDBG_WEBSOCKET_INTERVAL="100").notes == ()


def test_keys_of_the_original_command_line_are_accepted_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "neural_config.yaml").write_text(
        "default_backend: tensorflow\nvisualization: {default_format: png, auto_open: true}\n"
        "debug: {default_port: 8060, theme: light}\ntracking: {auto_track: true, experiment_dir: runs}\n"
    )
    config = load(tmp_path)
    assert (config.backend, config.port, config.dashboard.theme) == ("tensorflow", 8060, "light")
    assert config.origin("backend") == "neural_config.yaml: default_backend"
    assert len(config.notes) == 7
    assert sum(note.endswith("not used here") for note in config.notes) == 4
    (tmp_path / "neural_config.yaml").write_text("default_backend: tensorflow\nbackend: jax\n")
    assert load(tmp_path).backend == "jax"


def test_without_pyyaml_a_file_is_noted_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "neural_config.yaml").write_text("port: 1\n")
    (tmp_path / "config.yaml").write_text("model: mine\n")
    config = load(tmp_path)
    assert config.notes == ("neural_config.yaml: not read, because PyYAML is not installed",)
    assert config.port == 8050
    (tmp_path / "config.yaml").write_text("anomaly_sensitivity: 0.9\n")
    assert "config.yaml: not read, because PyYAML is not installed" in load(tmp_path).notes


def test_without_a_toml_reader_our_table_is_noted_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", None)
    (tmp_path / "pyproject.toml").write_text(as_toml("port", 1))
    assert load(tmp_path).notes == ("pyproject.toml: [tool.neuraldbg] not read, because tomli is not installed",)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert load(tmp_path).notes == ()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates()
KEYS = st.sampled_from([*KNOWN_KEYS, "dashboard", "breakpoints", "debug", "tracking"]) | SCALARS
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.dictionaries(KEYS, TREES, max_size=5).map(lambda tree: yaml.safe_dump(tree, allow_unicode=True)) | st.text())
@example("&a [*a]")
@example("budget: !!bool maybe")
@example("out: 2001-99-99")
@example("? {a: 1}\n: 2")
@example("port: 0x" + "f" * 9000)
@example("a: &a [x, x]\nbudget: &b [*a, *a]\nlayers: [*b, *b]")
@example("dashboard: &d {theme: *d}")
@example("[" * 3000)
@example("\x00")
def test_no_yaml_raises_anything_but_a_config_error(tmp_path: Path, text: str) -> None:
    for name in ("neural_config.yaml", "config.yaml"):
        (tmp_path / "neural_config.yaml").unlink(missing_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8", errors="replace")
        notes, problem = outcome(tmp_path)
        assert all("\n" not in line for line in (*notes, problem))
        assert not problem or problem.startswith("neural_config.yaml: ")


def outcome(cwd: Path) -> tuple[tuple[str, ...], str]:
    try:
        return load(cwd).notes, ""
    except ConfigError as error:
        return (), str(error)


@given(st.text("ab", max_size=6), st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_edits_are_a_distance(first: str, second: str, third: str) -> None:
    assert (edits(first, second) == 0) == (first == second)
    assert edits(first, second) == edits(second, first)
    assert edits(first, third) <= edits(first, second) + edits(second, third)


def test_a_config_is_frozen_and_asks_back_for_unknown_keys() -> None:
    with pytest.raises(AttributeError):
        Config().port = 1  # type: ignore[misc]
    with pytest.raises(ConfigError, match="did you mean 'port'"):
        Config().origin("prot")


def test_the_documentation_page_holds_the_table_of_the_schema() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert reference_table() in page.read_text(encoding="utf-8")
