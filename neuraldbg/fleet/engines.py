"""Where the rows are read and reduced: here, by DuckDB, or on a Ray or Spark cluster. The answer is the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import StoreError, UsageError
from neuraldbg.fleet.reduction import Columns, Gathering, Job, batch_of, columns_of, groups_of
from neuraldbg.fleet.sources import Source
from neuraldbg.store.extras import needed

BATCH_ROWS: Final = 131_072
HERE_BYTES: Final = 256_000_000  # of files that a second look needs: fewer are read sooner than a cluster is asked
SPARK_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
WHAT: Final = "--engine {}"
Steps = NDArray[np.int64] | None  # in order; none: all
Engine = Callable[[Job, Source, Steps], Iterable[Columns]]  # groups, in any order


def local(job: Job, source: Source, steps: Steps) -> Iterator[Columns]:
    for batch in source.batches(job, steps):
        yield groups_of(job, batch, steps)


def duckdb(job: Job, source: Source, steps: Steps) -> Iterator[Columns]:
    """DuckDB scans, through the file system of the place, and reads only the columns and rows that are wanted."""
    engine = needed("duckdb", WHAT.format("duckdb"))
    datasets = needed("pyarrow.dataset", WHAT.format("duckdb"))
    files = source.files(job.table, steps)
    if not files:
        return
    rows = datasets.dataset(files, filesystem=source.data_set.place.filesystem, format="parquet")
    wanted = ", ".join(f'"{name}"' for name in job.columns)
    tests = [f"kind IN ({', '.join(map(str, job.kinds))})"] if job.kinds else []
    tests += [] if steps is None else [_between(steps)]
    where = f"WHERE {' AND '.join(tests)}" if tests else ""
    with engine.connect() as connection:
        connection.register("recorded", rows)
        found = connection.sql(f"SELECT {wanted} FROM recorded {where}")
        read = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader  # its name in older versions
        for batch in read(BATCH_ROWS):
            yield groups_of(job, batch, steps)


def _between(steps: NDArray[np.int64]) -> str:
    return f"step BETWEEN {int(steps[0])} AND {int(steps[-1])}"


def ray(job: Job, source: Source, steps: Steps) -> Iterator[Columns]:
    data = needed("ray.data", WHAT.format("ray"))
    files = source.files(job.table, steps)
    if not files:
        return
    rows = data.read_parquet(files, filesystem=source.data_set.place.filesystem).select_columns(list(job.columns))
    groups = rows.map_batches(partial(_table_of, job.name, steps), batch_format="pyarrow", batch_size=None)
    for batch in groups.iter_batches(batch_format="pyarrow", batch_size=None):
        yield columns_of(batch)


def _table_of(name: str, steps: Steps, batch: Any) -> Any:
    """On a worker, which has our package and looks the job up by its name."""
    from neuraldbg.fleet.analyses import job_named

    pa = needed("pyarrow", WHAT.format("ray"))
    job = job_named(name)
    return pa.Table.from_batches([batch_of(job, groups_of(job, batch, steps))])


def spark(job: Job, source: Source, steps: Steps) -> Iterator[Columns]:
    session = needed("pyspark.sql", WHAT.format("spark")).SparkSession.builder.appName("neuraldbg").getOrCreate()
    context = session.sparkContext
    if context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable  # workers of this machine: else Spark takes whichever python3 is first
    files = source.files(job.table, steps)
    if not files:
        return
    if session.conf.get(SPARK_BATCH, "10000") == "10000":  # nobody has chosen: a batch costs more than its rows
        session.conf.set(SPARK_BATCH, str(BATCH_ROWS))
    local_place = source.data_set.place.local
    shown = source.data_set.place.shown
    paths = files if local_place else [f"{shown.partition('://')[0].replace('s3', 's3a')}://{file}" for file in files]
    rows = session.read.parquet(*paths).select(*job.columns)
    rows = rows if steps is None else rows.where(_between(steps))
    groups = rows.mapInArrow(partial(_batches_of, job.name, steps), _spark_schema(job))
    yield columns_of(groups.toArrow())


def _batches_of(name: str, steps: Steps, batches: Iterable[Any]) -> Iterator[Any]:
    """On a worker: the groups of all batches of a partition, which are many and small."""
    from neuraldbg.fleet.analyses import job_named

    job = job_named(name)
    gathering = Gathering(job)
    for batch in batches:
        gathering.add(groups_of(job, batch, steps))
    yield batch_of(job, gathering.groups())


def _spark_schema(job: Job) -> str:
    words = {"string": "string", "int16": "short", "int32": "int", "int64": "long", "double": "double"}
    return ", ".join(f"{field.name} {words[str(field.type)]}" for field in job.schema())


ENGINES: Final[dict[str, Engine]] = {"local": local, "duckdb": duckdb, "ray": ray, "spark": spark}


def answer(job: Job, sources: Sequence[Source], engine: str) -> list[dict[str, Any]]:
    """What an analysis says of these runs."""
    if engine not in ENGINES:
        raise UsageError(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
    names = [source.name for source in sources]
    first = _gathered(job.outline or job, sources, engine)
    if not len(first["run"]):
        return []
    if job.outline is None:
        return list(job.finish(first, names))
    narrowed = job.outline.finish(first, names)
    return list(job.finish(_gathered(job, sources, engine, narrowed.steps), names, narrowed))


def _failures(engine: str) -> tuple[type[Exception], ...]:
    """What an engine raises where it cannot read; those of its workers are among them."""
    ours: list[type[Exception]] = [needed("pyarrow", "neural analyze").ArrowException, OSError]
    if engine == "duckdb":
        ours.append(needed("duckdb", WHAT.format(engine)).Error)
    elif engine == "ray":
        ours.append(needed("ray.exceptions", WHAT.format(engine)).RayError)
    elif engine == "spark":
        ours.append(needed("pyspark.errors", WHAT.format(engine)).PySparkException)
    return tuple(ours)


def _told_plainly(groups: Iterable[Columns], engine: str, source: Source) -> Iterator[Columns]:
    """What an engine says of a file that it cannot read fills a page, and names none of ours."""
    try:
        yield from groups
    except _failures(engine) as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise StoreError(
            f"{engine} cannot read {source.name}: {type(error).__name__}: {text}; `--engine local` names a damaged file"
        ) from error


def _gathered(
    job: Job, sources: Sequence[Source], engine: str, steps: Mapping[int, NDArray[np.int64]] | None = None
) -> Columns:
    """The groups of all runs, with the number of the run among their keys."""
    gathering = Gathering(replace(job, keys=("run", *job.keys)))
    for index, source in enumerate(sources):
        wanted = None if steps is None else steps.get(index, np.empty(0, np.int64))
        if wanted is not None and not len(wanted):
            continue
        here = wanted is not None and source.size_bytes(job.table, wanted) <= HERE_BYTES
        name = "local" if here else engine
        for groups in _told_plainly(ENGINES[name](job, source, wanted), name, source):
            gathering.add({**groups, "run": np.full(len(groups[job.keys[0]]), index, np.int32)})
    return gathering.groups()
