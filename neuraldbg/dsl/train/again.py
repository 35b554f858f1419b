"""A `.neural` file trained as a program of its own, as `neural debug` trains it.

python -m neuraldbg.dsl.train.again FILE [--dataset PATH] [--network NAME] [--device NAME] [--backend NAME] [--epochs N]
    [--batch-size N]
"""

from __future__ import annotations

import argparse

from neuraldbg.dsl.train.job import prepare
from neuraldbg.dsl.train.loop import Options


def main() -> None:
    parser = argparse.ArgumentParser(prog="neuraldbg.dsl.train.again")
    parser.add_argument("file")
    for name in ("dataset", "network", "device", "backend"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int, dest="batch")
    given = parser.parse_args()
    names = ("dataset", "network", "device", "epochs", "batch")
    options = Options(**{name: getattr(given, name) for name in names})
    prepare(given.file, options, backend=given.backend).run()


if __name__ == "__main__":
    main()
