"""The settings as a Markdown table, for the documentation."""

from __future__ import annotations

from neuraldbg.config import values
from neuraldbg.config.schema import IN_EFFECT, INTERVAL, NEURAL_VARIABLES, SETTINGS, Config, Setting, variable_of


def reference_table() -> str:
    """One row per setting: key, default, what may be written, where else it may be given, meaning."""
    rows = [
        ("Key", "Default", "Expected", "Flag", "Environment", "Meaning"),
        ("---",) * 6,
        *(_row(each) for each in SETTINGS.values()),
        _interval_row(),
    ]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"


def _row(setting: Setting) -> tuple[str, ...]:
    variables = [setting.variable, *(name for name, key in NEURAL_VARIABLES.items() if key == setting.key)]
    return (
        f"`{setting.key}`",
        _shown(setting),
        setting.form.expected,
        f"`{setting.flag}`" if setting.flag and setting.key in IN_EFFECT else "-",
        ", ".join(f"`{name}`" for name in variables),
        setting.meaning + ("" if setting.key in IN_EFFECT else " (not acted on yet)"),
    )


def _interval_row() -> tuple[str, ...]:
    default = f"`{Config().websocket_interval:g}`"
    meaning = f"`{INTERVAL.key}` in milliseconds: the same setting"
    return f"`{INTERVAL.name}`", default, values.MILLISECONDS.expected, "-", f"`{variable_of(INTERVAL.name)}`", meaning


def _shown(setting: Setting) -> str:
    value = setting.default
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    return f"`{values.shown_bytes(value) if setting.form is values.SIZE else value}`"
