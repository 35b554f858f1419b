"""`python -m neuraldbg train.py ...` is `neural debug train.py ...`; a first word that is a command is that command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def as_command(argv: Sequence[str]) -> list[str]:
    """The words of the command line with `debug` put in where a target stands first."""
    from neuraldbg.surfaces.cli import COMMANDS, GLOBAL_FLAGS

    words = list(argv)
    first = next((at for at, word in enumerate(words) if word not in GLOBAL_FLAGS), len(words))
    if first < len(words) and words[first] not in (*COMMANDS, "-h", "--help", "--version"):
        words.insert(first, "debug")
    return words


if __name__ == "__main__":
    # `-m` puts the working directory first: a click.py there would be taken for ours. The script gets its own entry
    # later.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from neuraldbg.surfaces.cli import main

    main(as_command(sys.argv[1:]))
