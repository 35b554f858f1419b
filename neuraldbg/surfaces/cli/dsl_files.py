"""What the commands on `.neural` files share: their mistakes shown in full, then one line that says why it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from neuraldbg.errors import DslError

F = TypeVar("F", bound=Callable[..., Any])


def shows_problems(command: F) -> F:
    """A file with mistakes: each with its line and a caret on stderr; the caller prints the last line."""

    @wraps(command)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except DslError as error:
            if error.listing:
                click.echo(error.listing, err=True)
            raise

    return call  # type: ignore[return-value]


def each_with_path(graphs: Sequence[Any], path: Path) -> Iterator[tuple[Any, Path]]:
    """A file for every network: `path` itself for one, else with the name of each, numbered where a name returns."""
    taken: Counter[str] = Counter()
    for graph in graphs:
        name = str(graph.network.name).lower()
        taken[name] += 1
        again = f"_{taken[name]}" if taken[name] > 1 else ""
        yield graph, path if len(graphs) == 1 else path.with_name(f"{path.stem}_{name}{again}{path.suffix}")


FILE = click.argument("file", type=click.Path())
NETWORK = click.option("--network", metavar="NAME", help="This network of the file only.")
BACKEND = click.option(
    "-b", "--backend", metavar="NAME", envvar="NEURAL_BACKEND", help="What it runs on.  [default: pytorch]"
)
OF_A_TRAINING = (  # of commands whose target may be a file of ours or a script
    click.option("-b", "--backend", metavar="NAME", help="What a .neural file runs on.  [default: pytorch]"),
    click.option("--dataset", metavar="PATH", help="Data of a .neural file.  [default: synthetic data]"),
    click.option("--network", metavar="NAME", help="This network of a .neural file only."),
    click.option("--device", metavar="NAME", help="Of a .neural file: auto, cpu, gpu, cuda:0.  [default: as it says]"),
    click.option("--epochs", metavar="N", type=click.IntRange(1), help="Of a .neural file, instead of what it says."),
    click.option("--batch-size", "batch", metavar="N", type=click.IntRange(1), help="The same for its batches."),
)


def training_options(command: F) -> F:
    for option in reversed(OF_A_TRAINING):
        command = option(command)
    return command
