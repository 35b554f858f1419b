"""neural debug: run a training script or a .neural file under the debugger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.cli.dsl_files import training_options
from neuraldbg.surfaces.cli.target import DSL_SUFFIXES, need_values, refuse_unsupported, split_target

if TYPE_CHECKING:
    from neuraldbg.config import Config


OF_FILES = ("dataset", "network", "device", "epochs", "batch")  # what a .neural file is trained with
AUTO_BYTES = 128_000_000  # on disk, of a recording that nobody asked for
BESIDE_BYTES = 1_000_000  # likewise, of findings, names and the like
TAKEN = (  # options that are settings of the same name
    "headless",
    "host",
    "port",
    "out",
    "budget",
    "max_disk",
    "fail_on",
    "record",
    "record_memory",
    "deterministic",
)


class DebugCommand(click.Command):
    """Parses our options only; what stands after the target is handed over as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        values = {
            name: p.nargs for p in self.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts
        }
        split = split_target(args, values)
        ctx.meta["split"] = split
        need_values(split.own, values)
        if split.target is not None and "--compare" not in split.own:
            refuse_unsupported(split.target)
        own = [*split.own, "-m"] if split.module else [*split.own]
        return super().parse_args(ctx, [*own, "--", *([split.target, *split.args] if split.target is not None else [])])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return ["[OPTIONS]", "TARGET", "[ARGS]..."]


@click.command(
    cls=DebugCommand,
    short_help="Run a training script or a .neural file under the debugger.",
    epilog="Our options stand before TARGET; everything after it belongs to the script. A .neural file has none of its "
    "own: options may follow it.",
)
@click.option("-m", "module", is_flag=True, help="TARGET is a module, as in python -m package.module.")
@click.option("--headless", is_flag=True, default=None, help="No dashboard and no prompt.")
@click.option("--dashboard/--no-dashboard", "dashboard", default=None, help="Serve the page, or not.")
@click.option("--no-browser", is_flag=True, default=None, help="Do not open the dashboard in a browser.")
@click.option("--host", metavar="ADDR", help="Address of the dashboard.")
@click.option("--port", metavar="N", help="Port of the dashboard.")
@click.option("--theme", metavar="NAME", help="Colours of the dashboard: dark, light, auto.")
@click.option(
    "--out",
    metavar="DIR",
    help="Directory of the run, or a URL (s3://bucket/run) to ship it to.  [default: neuraldbg_runs/<time>-<script>]",
)
@click.option("--budget", metavar="SHARE", help="Time the debugger may add: 1%, full (every step), off.  [default: 1%]")
@click.option("--layers", metavar="PATTERN", multiple=True, help="Watch these layers only (name, glob; repeatable).")
@click.option("--gradients", is_flag=True, help="Look for and show faults of the gradients only (may be combined).")
@click.option("--dead-neurons", is_flag=True, help="Look for and show dead and saturated units only.")
@click.option("--anomalies", is_flag=True, help="Look for NaN, Inf, explosions, instability only; list the unusual.")
@click.option("--vanishing-threshold", metavar="NORM", help="Gradient norm below which a layer vanishes.")
@click.option("--exploding-threshold", metavar="NORM", help="Gradient norm above which a layer explodes.")
@click.option("--activation-threshold", metavar="X", help="Activation below which a unit counts as inactive.")
@click.option("--alert-on-nan", is_flag=True, default=None, help="Stop before a NaN reaches the weights (exit code 6).")
@click.option(
    "--breakpoint",
    "breakpoints",
    metavar="LAYER",
    multiple=True,
    help="Stop at this layer; 'LAYER if CONDITION' stops when that holds (repeatable).",
)
@click.option(
    "--break-on", metavar="KIND", multiple=True, help="Stop when this is found (vanishing_gradient, nan_loss, ...)."
)
@click.option("--step", is_flag=True, help="Stop at the first layer, to go on step by step.")
@click.option(
    "--arm-nan",
    metavar="STEP",
    type=click.IntRange(min=0),
    help="Check every operation from this update on: names the line.",
)
@click.option(
    "--record",
    metavar="MODE",
    help="What `neural replay` needs to make steps again: auto (of as many as the budget allows), full (of all), off.  "
    "[default: auto]",
)
@click.option(
    "--record-memory", metavar="SIZE", help="Most that a recording takes.  [default: 512MB; 128MB of --record auto]"
)
@click.option(
    "--deterministic",
    is_flag=True,
    default=None,
    help="Repeatable kernels: on CUDA slower, and gradients can be made again exactly.",
)
@click.option("--max-disk", metavar="SIZE", help="Most disk a run may take.  [default: 2GB]")
@click.option("--export", metavar="FILE", help="Write the session as JSON when the run is over.")
@click.option(
    "--json", "as_json", is_flag=True, help="The session as JSON instead of the report: the last line of stdout."
)
@click.option("--fail-on", metavar="LEVEL", help="Exit with 6 from this verdict on (warning, critical); 7: no verdict.")
@training_options
@click.option("--compare", nargs=2, metavar="A B", help="Compare two runs or session files; trains nothing.")
@click.argument("target", required=False, type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, target: str | None, args: tuple[str, ...], **options: Any) -> int:
    """Run TARGET exactly as python would, record what happens in its models, and say how it went.

    TARGET is a script (train.py), after -m a module, or a network (model.neural), which is checked, built on PyTorch
    and trained. The exit code is the script's own.
    """
    if options["compare"]:
        from neuraldbg.surfaces.cli.compare import show_comparison

        return show_comparison(*options["compare"], as_json=options["as_json"])
    if target is None:
        raise UsageError("debug needs a target: neural debug train.py")
    model = model_of(target, options)
    config = _config(options)
    for note in (*config.notes, *_idle_keys(config), *_idle_on_keras(model, options, config)):
        _note(note)
    options["model"] = model
    return _launch(target, args, config, options=options, live=bool((ctx.obj or {}).get("animations", True)))


def model_of(target: str, options: dict[str, Any]) -> Any:
    """A `.neural` file, read and checked before anything is started; None for anything else."""
    if options["module"] or not target.endswith(DSL_SUFFIXES):
        for name in OF_FILES:
            if options.get(name):
                raise UsageError(f"--{_flag(name)} is for .neural files; a script's own options stand behind it")
        return None
    from neuraldbg.dsl.train.job import prepare
    from neuraldbg.dsl.train.loop import Options
    from neuraldbg.surfaces.cli.dsl_files import shows_problems

    wanted: dict[str, Any] = {name: options.get(name) for name in OF_FILES}
    return shows_problems(prepare)(target, Options(**wanted), backend=options["backend"])


def _config(options: dict[str, Any]) -> Config:
    from neuraldbg.config import load_config

    flags = {name: options[name] for name in TAKEN}
    flags["dashboard.enabled"] = options["dashboard"]
    flags["dashboard.theme"] = options["theme"]
    flags["dashboard.browser"] = False if options["no_browser"] else None
    flags["alert_on_nan"] = options["alert_on_nan"]
    for name in ("vanishing", "exploding", "activation"):
        flags[f"thresholds.{name}"] = options[f"{name}_threshold"]
    flags["layers"] = options["layers"] or None
    return load_config(flags)


def _idle_keys(config: Config) -> list[str]:
    """Keys somebody has set and this version does not act on: said, so that nobody waits for them."""
    from neuraldbg.config.schema import IN_EFFECT, SETTINGS

    idle = [key for key in SETTINGS if key not in IN_EFFECT and config.origin(key) != "default"]
    return [f"{config.origin(key)}: {key} has no effect in this version" for key in idle]


def _idle_on_keras(model: Any, options: dict[str, Any], config: Config) -> list[str]:
    """Options that act on PyTorch, for a `.neural` file that runs on something else."""
    if model is None or model.backend not in ("tensorflow", "jax"):
        return []
    asked = {
        "--arm-nan": options["arm_nan"] is not None,
        "--record": config.record == "full",
        "--deterministic": config.deterministic,
    }
    return [f"{name} has no effect on {model.backend}" for name, wanted in asked.items() if wanted]


def _launch(target: str, args: tuple[str, ...], config: Config, *, options: dict[str, Any], live: bool) -> int:
    from neuraldbg.launch import Request, run

    export = Path(options["export"]).absolute() if options["export"] else None
    if export is not None:
        _check_writable(export)
    return run(
        Request(
            target=target,
            args=args if options["model"] is None else _words(options),
            module=options["module"],
            out=None if _ship_to(config) else config.out,
            budget=str(config.budget),
            layers=config.layers,
            max_disk_bytes=_trace_bytes(config),
            record_bytes=_record_bytes(config),
            record_share=config.budget.for_recording if config.record == "auto" else None,
            deterministic=config.deterministic,
            export=export,
            json=options["as_json"],
            live=live,
            fail_on=config.fail_on,
            settings=_settings(config, options),
            alert_on_nan=config.alert_on_nan,
            host=config.host,
            port=None if config.headless or not config.dashboard.enabled else config.port,
            page=_page(config),
            browser=_browser(config),
            arm_nan=options["arm_nan"],
            model=options["model"],
            breakpoints=options["breakpoints"],
            break_on=_kinds(options["break_on"]),
            step=options["step"],
            breaking=config.breakpoints.enabled,
            pausing=config.breakpoints.pause_on_condition,
            serve=not config.headless,
            prompt=None if config.headless else _prompt(),
        )
    )


def _record_bytes(config: Config) -> int:
    if config.record == "off" or (config.record == "auto" and not config.budget.for_recording):
        return 0
    return min(config.record_memory, AUTO_BYTES, config.max_disk // 8) if _unasked(config) else config.record_memory


def _trace_bytes(config: Config) -> int:
    """What is recorded unasked is part of what a run may take."""
    beside = min(BESIDE_BYTES, config.max_disk // 64)
    return config.max_disk - (_record_bytes(config) + beside if _unasked(config) else 0)


def _unasked(config: Config) -> bool:
    return config.record == "auto" and config.origin("record_memory") == "default"


def _words(options: dict[str, Any]) -> tuple[str, ...]:
    """What a `.neural` file was trained with, as it would be typed: for who runs it again."""
    names = ("backend", *OF_FILES)
    return tuple(word for name in names if options[name] for word in (f"--{_flag(name)}", str(options[name])))


def _flag(name: str) -> str:
    return {"batch": "batch-size"}.get(name, name)


def _kinds(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return ()
    from neuraldbg.analysis.catalogue import named

    return tuple(named(name).id for name in names)


def _prompt() -> Any:
    """Somebody at this terminal, if there is one."""
    from neuraldbg.surfaces.terminal.prompt import TerminalPrompt, can_prompt

    return TerminalPrompt() if can_prompt() else None


def _page(config: Config) -> tuple[float, int, int, str, str]:
    page = config.dashboard
    return page.refresh_rate, config.history.inspector, page.max_history, page.theme, ",".join(page.charts)


def _browser(config: Config) -> bool:
    """Whether the page is opened where somebody sits: at this terminal, before a screen."""
    from neuraldbg.surfaces.browser import has_a_screen
    from neuraldbg.surfaces.terminal.prompt import can_prompt

    return config.dashboard.browser and not config.headless and can_prompt() and has_a_screen()


def _settings(config: Config, options: dict[str, Any]) -> dict[str, Any]:
    """What the analysis is told: limits the user gave, and what to look for where not everything."""
    limits = config.thresholds
    given = {"vanishing": limits.vanishing, "exploding": limits.exploding, "activation": limits.activation}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    dial = {"anomaly_sensitivity": config.anomaly_sensitivity, "anomaly_history": config.history.anomaly}
    keys = {"anomaly_sensitivity": "anomaly_sensitivity", "anomaly_history": "history.anomaly"}
    settings |= {name: value for name, value in dial.items() if config.origin(keys[name]) != "default"}
    focus = [name for name in ("gradients", "dead_neurons", "anomalies") if options[name]]
    settings |= _shipping(config) if _ship_to(config) else {}
    kinds = list(_kinds(options["break_on"]))
    return {**settings, **({"focus": focus} if focus else {}), **({"break_on": kinds} if kinds else {})}


def _shipping(config: Config) -> dict[str, Any]:
    return {"ship_to": _ship_to(config), "ship_every_s": config.ship_every, "ship_rest_s": config.ship_rest}


def _ship_to(config: Config) -> str | None:
    """The URL that --out is, where it is one: the run is recorded here, and the viewer ships it there."""
    if config.out is None or ":/" not in str(config.out):
        return None
    from neuraldbg.store.extras import check_installed
    from neuraldbg.store.places import url_in

    url = url_in(config.out)
    if url is not None:
        check_installed("pyarrow", f"shipping to {url}")
    return url


def _check_writable(path: Path) -> None:
    """A mistyped export path is found before hours of training, not after."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"cannot write {path}: no permission to write in {path.parent}")


def _note(text: str) -> None:
    click.echo(f"neuraldbg: {text}", err=True)
