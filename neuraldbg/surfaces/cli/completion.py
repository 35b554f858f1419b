"""neural completion: the script that teaches a shell our commands."""

from __future__ import annotations

import click

from neuraldbg.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the shell completion script.")
@click.argument("shell")
def command(shell: str) -> int:
    """Print the completion script for SHELL (bash, zsh or fish).

    \b
    bash: eval "$(neural completion bash)"            in ~/.bashrc
    zsh:  eval "$(neural completion zsh)"             in ~/.zshrc
    fish: neural completion fish > ~/.config/fish/completions/neural.fish
    """
    if shell not in SHELLS:
        raise UsageError(f"no completion for {shell!r}; available: {', '.join(SHELLS)}")
    from click.shell_completion import get_completion_class

    from neuraldbg.surfaces.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None
    for program in ("neural", "neuraldbg"):
        script = kind(cli, {}, program, f"_{program.upper()}_COMPLETE")
        click.echo(script.source_template % script.source_vars())
    return 0
