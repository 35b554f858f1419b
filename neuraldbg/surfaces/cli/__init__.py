"""The command line. One file per command, loaded when it is called: `neural --help` imports none of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click

# name -> what the list of commands says; the file is cli/<name>.py and holds `command`
COMMANDS = {
    "debug": "Run a training script or a .neural file under the debugger.",
    "profile": "Say where the time and memory of a training go.",
    "run": "Train a .neural file, without the debugger.",
    "compile": "Write a .neural file as PyTorch code.",
    "validate": "Check a .neural file: syntax, values, shapes.",
    "visualize": "Draw a .neural file, with shapes and counts.",
    "fmt": "Write .neural files in one style.",
    "view": "Serve runs to a browser and over REST.",
    "report": "Show how a run went.",
    "explain": "Explain a diagnosis, or list them all.",
    "inspect": "List the layers of a run, or show one.",
    "whatif": "Try the cures of a run, one at a time.",
    "replay": "Make any step of a recorded run again.",
    "determinism": "Run a script twice and name what differs.",
    "compare": "Put two runs side by side.",
    "analyze": "Analyse many ranks and runs, here or on an engine.",
    "export": "Write a run as one file, or as Parquet.",
    "import": "Make a run directory of a Parquet data set.",
    "doctor": "Say what is installed and what works here.",
    "completion": "Print the shell completion script.",
}
FILES = {"import": "import_run"}  # commands whose name no file can have
GLOBAL_FLAGS = ("-v", "--verbose", "--no-animations")
INTERRUPTED, PIPE_CLOSED = 130, 141


class CommandTable(click.Group):
    """Commands by name; the file of one is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}.{FILES.get(cmd_name, cmd_name)}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if name.startswith("-"):
            ctx.fail(f"no such option: {name}")
        if os.path.isfile(name):
            raise click.UsageError(f"{name!r} is no command; to debug it: neural debug {name}")
        from neuraldbg.errors import nearest

        near = nearest(name, COMMANDS, 1)
        raise click.UsageError(
            f"no command {name!r}; " + (f"did you mean {near[0]!r}?" if near else "see neural --help")
        )


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"neural-debugger {version()}")
        ctx.exit()


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version("neural-debugger")
    except metadata.PackageNotFoundError:
        return "(run from a source tree that is not installed)"


@click.command(
    cls=CommandTable,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: neural debug train.py",
)
@click.option("-v", "--verbose", is_flag=True, help="Say more about what the debugger itself does.")
@click.option("--no-animations", is_flag=True, help="No live line at the bottom of the terminal.")
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show it.")
@click.pass_context
def cli(ctx: click.Context, verbose: bool, no_animations: bool) -> None:
    """The debugger for neural-network training."""
    ctx.obj = {"animations": not no_animations}
    if verbose:
        _log_to_stderr()


def _log_to_stderr() -> None:
    """Our own log only: the script's logging is not ours to configure."""
    import logging

    log = logging.getLogger("neuraldbg")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("neuraldbg: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False


def program_name() -> str:
    stem = os.path.basename(sys.argv[0] or "").removesuffix(".exe")
    return stem if stem in ("neural", "neuraldbg") else "neural"


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: runs one command and exits; a mistake of the caller is one line and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    sys.exit(exit_code_of(lambda: _invoke(words)))


def _invoke(words: list[str]) -> Any:
    """One command. Not by `cli.main`: that would take a script's own Ctrl-C or closed pipe for its own."""
    name = program_name()
    variable = f"_{name.upper()}_COMPLETE"
    if variable in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, name, variable, os.environ[variable])
    with cli.make_context(name, words) as context:
        return cli.invoke(context)


def exit_code_of(command: Callable[[], Any]) -> int:
    """The exit code of a command, with whatever went wrong said in one line."""
    from neuraldbg.errors import NeuralDbgError

    try:
        result = command()
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as shown:
        click.echo(shown.ctx.get_help() if shown.ctx else "see neural --help")
        return 0
    except click.ClickException as error:
        return _refuse(error.format_message(), error.exit_code)
    except NeuralDbgError as error:
        return _refuse(str(error), getattr(error, "exit_code", 2))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _refuse(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"{program_name()}: {line}", file=sys.stderr)
    return code
