"""The data set on paper: version, names of files, columns of tables. `docs/object-stores.md` tells it in words."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import numpy as np

from neuraldbg.errors import TraceDamaged, TraceTooNew
from neuraldbg.store.extras import needed
from neuraldbg.trace import format as ndt
from neuraldbg.trace.tables import CALL_CODE, KIND_CODE, PHASE_CODE, TABLES

FORMAT: Final = "neuraldbg.parquet"
MAJOR: Final = 1  # a reader refuses a larger one
MINOR: Final = 1  # a reader copes with any: columns and tables may be added
DATASET_FILE: Final = "dataset.json"
MANIFEST_FILE: Final = "manifest.json"
METADATA_KEY: Final = b"neuraldbg"
PLAIN_NAME: Final = re.compile(r"(?:rank-\d{5,}/)?[A-Za-z0-9_][A-Za-z0-9_.\-]*")
WORDS: Final[dict[str, dict[int, str]]] = {
    "kind": {code: kind.value for kind, code in KIND_CODE.items()},
    "phase": {code: phase.value for phase, code in PHASE_CODE.items()},
    "call": {code: call.value for call, code in CALL_CODE.items()},
}


def rank_folder(rank: int) -> str:
    return f"rank-{rank:05d}"


def part_name(table: str, number: int) -> str:
    return f"{table}-{number:06d}.parquet"


def about() -> dict[str, Any]:
    """What every file of a data set says of itself."""
    return {"format": FORMAT, "version": [MAJOR, MINOR], "trace": [ndt.MAJOR, ndt.MINOR]}


def check_about(told: Any, where: str) -> None:
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise TraceDamaged(f"{where} was not written by `neural export --format parquet`")
    version = told.get("version")
    if not isinstance(version, list) or not version or not isinstance(version[0], int):
        raise TraceDamaged(f"{where} does not say its version")
    if version[0] > MAJOR:
        shown = ".".join(map(str, version))
        raise TraceTooNew(
            f"{where} was written by a newer NeuralDbg (data set {shown}; this one reads up to {MAJOR}.x): "
            "upgrade with `pip install -U neural-debugger`"
        )


def checked_json(data: bytes, where: str) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except ValueError as error:
        raise TraceDamaged(f"{where} is no JSON ({error}); copy it again") from error
    check_about(told, where)
    return dict(told)


def arrow_type(dtype: np.dtype[Any]) -> Any:
    """Unsigned 64 bits become signed ones, bit for bit: not every engine has them."""
    pa = needed("pyarrow", "a Parquet data set")
    if dtype.kind == "V":
        return pa.binary(dtype.itemsize)
    return pa.from_numpy_dtype(np.dtype("<i8") if dtype == np.dtype("<u8") else dtype)


def arrow_schema(table: str) -> Any:
    pa = needed("pyarrow", "a Parquet data set")
    metadata = {METADATA_KEY: json.dumps({**about(), "table": table}).encode()}
    if table == "facts":
        return pa.schema(
            [("row", pa.int64()), ("rank", pa.int32()), ("type", pa.string()), ("json", pa.string())], metadata
        )
    word = pa.dictionary(pa.int32(), pa.string())
    columns = TABLES[table].names or ()
    fields = [("row", pa.int64()), ("rank", pa.int32()), ("layer", word)]
    fields += [(name, arrow_type(TABLES[table][name])) for name in columns]
    fields += [(f"{name}_name", word) for name in columns if name in WORDS]
    return pa.schema(fields, metadata)
