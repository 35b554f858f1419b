"""The CLI page of the documentation, written from the commands themselves by `make docs`."""

from __future__ import annotations

import click

from neuraldbg.surfaces.cli import COMMANDS, cli

_HEAD = """# Command line

`neural` and `neuraldbg` are one program; `python -m neuraldbg train.py` is `neural debug train.py`. This page is
generated from the commands: `make docs` writes it.

Exit codes: the script's own code when it is not 0; else 0. With `--fail-on`: 6 = unhealthy, 7 = could not judge. A
usage error or a missing script: 2. A `.neural` file: 2 = syntax or a value, 3 = shapes, 4 = backend missing, 5 = no
such file. Every other exit of ours that is not 0 prints one line on stderr that says why.
"""


def reference() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, _block("neural", cli)]
    for name in COMMANDS:
        context = click.Context(cli)
        command = cli.get_command(context, name)
        assert command is not None
        parts.append(_block(f"neural {name}", command))
    return "\n".join(parts)


def _block(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name, max_content_width=100, terminal_width=100)
    context.help_option_names = ["-h", "--help"]
    return f"## `{name}`\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    print(reference(), end="")
