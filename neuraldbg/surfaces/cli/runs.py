"""Finding the run a command is about: a directory, the name of one, or the newest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from neuraldbg.errors import NeuralDbgError, UsageError, nearest

if TYPE_CHECKING:
    from neuraldbg.store.cache import RunCache
    from neuraldbg.trace import Trace

RUNS = Path("neuraldbg_runs")


def find_run(given: str | None) -> Path:
    """The run meant: a directory, zip, Parquet data set or its URL, the name of one in ./neuraldbg_runs, or without one
    the newest there."""
    if given is None:
        return _newest()
    for path in (Path(given), RUNS / given):
        if path.exists():
            return fetched(str(path)) if (path / "dataset.json").is_file() else path
    if "://" in given:
        return fetched(given)
    raise UsageError(f"no run {given!r}: {_where_it_could_be(given)}")


def _where_it_could_be(given: str) -> str:
    names = [run.name for run in _runs()]
    if not names:
        return f"no such path, and no run in {RUNS.resolve()}; make one: neural debug train.py"
    near = nearest(Path(given).name, names, 1)
    meant = (
        f"did you mean {RUNS / near[0]}?" if near else f"the newest of its {len(names)} runs is {RUNS / _newest().name}"
    )
    return f"no such path, and no such name in {RUNS.resolve()}; {meant}"


def fetched(url: str) -> Path:
    """The run of a data set that lies elsewhere, or in Parquet, as a directory in the cache."""
    import click

    found = run_cache().fetch(url)
    for note in found.notes:
        click.echo(f"neuraldbg: {note}", err=True)
    return found.path


def run_cache() -> RunCache:
    from neuraldbg.config import load_config
    from neuraldbg.store.cache import RunCache, default_root

    config = load_config()
    return RunCache(config.cache_dir or default_root(), config.max_cache)


def _runs() -> list[Path]:
    try:
        return [entry for entry in RUNS.iterdir() if (entry / "run.json").is_file()]
    except OSError:
        return []


def _newest() -> Path:
    runs = _runs()
    if not runs:
        raise UsageError(f"no run in ./{RUNS}; name one, or make one: neural debug train.py")
    return max(runs, key=lambda run: ((run / "run.json").stat().st_mtime_ns, run.name))


def open_run(given: str | None) -> tuple[Path, Trace]:
    from neuraldbg.trace import open_trace

    run_dir = find_run(given)
    try:
        return run_dir, open_trace(run_dir)
    except NeuralDbgError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"cannot read {run_dir}: {error}") from None


def newest_live_run() -> Path | None:
    """The newest run of this folder whose training process still lives."""
    from neuraldbg.surfaces.liveness import is_alive
    from neuraldbg.trace import open_trace
    from neuraldbg.trace.rundir import load_run_info

    newest_first = sorted(_runs(), key=lambda run: ((run / "run.json").stat().st_mtime_ns, run.name), reverse=True)
    for run in newest_first:
        try:
            if not is_alive(load_run_info(run)[0]):
                continue  # without a look at its trace, which may be large
            with open_trace(run) as trace:
                if is_alive(trace.run):
                    return run
        except (NeuralDbgError, OSError, ValueError, KeyError, TypeError):
            continue
    return None
