"""`python -m neural.cli debug train.py` is `neural debug train.py`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    import neuraldbg

    sys.path[0] = str(Path(neuraldbg.__file__).parents[1])  # not the working directory: a click.py there is not ours
    from neuraldbg.surfaces.cli import main

    main()
