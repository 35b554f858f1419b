"""Datasets in files: IDX, CIFAR batches, CSV, NumPy arrays, folders of pictures. Nothing in them is ever executed."""

from __future__ import annotations

import csv
import gzip
import io
import math
import pickle
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from neuraldbg.dsl.train.memory import free_on
from neuraldbg.dsl.train.samples import Array, Samples
from neuraldbg.errors import BackendMissing, UsageError

_IDX_TYPES = {8: np.uint8, 9: np.int8, 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_EMPTY = np.zeros(0, dtype=np.float32)


def read_path(path: Path, shape: tuple[int, ...]) -> Samples:
    """Whatever lies at `path`; `shape` is the size pictures are brought to."""
    if path.is_dir():
        return _folder(path, shape)
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".npz"):
        return _npz(path)
    if name.endswith(".npy"):
        return _npy(path)
    if name.endswith((".csv", ".tsv", ".txt")):
        return _csv(path)
    if "idx" in name or name.endswith("ubyte"):
        return _idx_pair(path)
    if name.startswith(("data_batch", "test_batch", "train", "test")) and "." not in name:
        return _cifar([path])
    raise UsageError(f"{path}: no dataset of a known kind (.npz, .npy, .csv, IDX, CIFAR batches, folder of pictures)")


def _folder(path: Path, shape: tuple[int, ...]) -> Samples:
    images = sorted(each for each in path.rglob("*images*idx3*") if each.is_file())
    if images:
        return _idx_pair(next((each for each in images if "train" in each.name), images[0]))
    batches = sorted(path.rglob("data_batch_*")) or [each for each in path.rglob("train") if each.is_file()]
    if batches:
        return _cifar(batches)
    arrays = sorted(path.glob("*.npz")) or sorted(path.glob("x*.npy"))
    if arrays:
        return read_path(arrays[0], shape)
    return _pictures(path, shape)


# -- NumPy and CSV -----------------------------------------------------------------------------------------------------


def _load(path: Path) -> Any:
    """An array, or those of an archive by name."""
    try:
        found = np.load(path, allow_pickle=False)
        return found if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path}: cannot be read as NumPy arrays: {error}") from None


def _npz(path: Path) -> Samples:
    arrays = _load(path)
    names = list(arrays)
    target = next((n for n in ("y", "y_train", "labels", "targets", "target") if n in names), None)
    inputs = [n for n in ("x", "X", "x_train", "X_train", "images", "inputs", "data") if n in names][:1]
    inputs = inputs or [n for n in names if n != target and not n.endswith("_test")]
    if not inputs:
        raise UsageError(f"{path}: holds {', '.join(names) or 'nothing'}; x (or x1, x2, ...) and y are expected")
    targets = arrays[target] if target else _EMPTY
    told = _told(path, arrays[inputs[0]].shape[0] if arrays[inputs[0]].ndim else 1)
    return Samples(tuple(arrays[n] for n in inputs), targets, told, names=tuple(inputs))


def _npy(path: Path) -> Samples:
    inputs = _load(path)
    beside = path.with_name("y" + path.name[1:]) if path.name[:1].lower() == "x" else None
    targets = _load(beside) if beside is not None and beside.is_file() else _EMPTY
    return Samples((inputs,), targets, _told(path, inputs.shape[0] if inputs.ndim else 1))


def _csv(path: Path) -> Samples:
    """The last column is the target; a first line without numbers is a header."""
    try:
        text = _bytes(path).decode("utf-8-sig")
        first = text.partition("\n")[0]
        delimiter = next((each for each in ",;\t" if each in first), ",")
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if rows and not _is_number(rows[0][0]):
        rows = rows[1:]
    if not rows or len(rows[0]) < 2:
        raise UsageError(f"{path}: at least two columns are needed, the last is the target")
    width = len(rows[0])
    for number, row in enumerate(rows, 1):
        if len(row) != width or not all(_is_number(cell) for cell in row[:-1]):
            raise UsageError(f"{path}: row {number} does not hold {width - 1} numbers and a target")
    inputs = np.array([[float(cell) for cell in row[:-1]] for row in rows], dtype=np.float32)
    last = [row[-1] for row in rows]
    targets = np.array([float(c) for c in last]) if all(map(_is_number, last)) else np.array(last)
    return Samples((inputs,), targets, _told(path, len(rows)))


def _need_room(path: Path, size: int) -> None:
    """Before anything is read: what does not fit into memory is refused, not tried."""
    free = free_on("cpu")
    if free is not None and size > free:
        need, have = f"{size / 1e9:,.1f} GB", f"{free / 1e9:,.1f} GB"
        raise UsageError(f"{path}: needs about {need} of memory, {have} are free; take a part of it")


def _bytes(path: Path) -> bytes:
    try:
        _need_room(path, 2 * path.stat().st_size)
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# -- pictures ----------------------------------------------------------------------------------------------------------


def read_idx(path: Path) -> Array:
    """The format of MNIST: two zeros, a type, the number of dimensions, their sizes, the values."""
    data = _bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES:
        raise UsageError(f"{path}: not an IDX file")
    rank = data[3]
    if len(data) < 4 + 4 * rank:
        raise UsageError(f"{path}: ends in its own header")
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    kind = np.dtype(_IDX_TYPES[data[2]])  # type: ignore[call-overload]
    body = len(data) - 4 - 4 * rank
    values = np.frombuffer(data, dtype=kind, offset=4 + 4 * rank, count=body // kind.itemsize)
    if values.size != math.prod(shape) or body % kind.itemsize:
        raise UsageError(f"{path}: its header promises {'x'.join(map(str, shape))} values, {values.size} follow")
    return values.reshape(shape)


def _idx_pair(path: Path) -> Samples:
    images = read_idx(path)
    name = path.name.replace("images", "labels").replace("idx3", "idx1")
    labels = path.with_name(name)
    if not labels.is_file():
        labels = labels.with_suffix("") if labels.suffix == ".gz" else labels.with_name(f"{labels.name}.gz")
    if not labels.is_file():
        raise UsageError(f"{path}: no labels beside it ({name})")
    return Samples((images,), read_idx(labels), _told(path, len(images)))


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds arrays and plain containers; any other class in the file is refused."""

    _ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no dataset needs")
        if name == "_reconstruct":
            return _reconstruct
        return {"ndarray": np.ndarray, "dtype": np.dtype}.get(name, _encode)


def _reconstruct(kind: Any, shape: Any, dtype: Any) -> Any:
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("it holds something that is no array")
    return np.ndarray.__new__(np.ndarray, shape, dtype)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding}")
    return text.encode("latin1")


def _cifar(paths: list[Path]) -> Samples:
    images, labels = [], []
    for path in paths:
        try:
            with path.open("rb") as file:
                batch = _ArraysOnly(file, encoding="latin1").load()
            rows = np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
            labels.append(np.asarray(batch.get("labels", batch.get("fine_labels")), dtype=np.int64).reshape(-1))
        except (pickle.UnpicklingError, OSError, EOFError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}: not read as a CIFAR batch: {error}") from None
        images.append(rows.transpose(0, 2, 3, 1))
    data = np.concatenate(images)
    return Samples((data,), np.concatenate(labels), _told(paths[0].parent, len(data)))


def _pictures(path: Path, shape: tuple[int, ...]) -> Samples:
    """One folder a class."""
    classes = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    files = [(p, n) for n, c in enumerate(classes) for p in sorted(c.iterdir()) if p.suffix.lower() in _PICTURES]
    if not files and (path / "train").is_dir():  # beside val and test
        return _pictures(path / "train", shape)
    if not files:
        raise UsageError(f"{path}: no dataset of a known kind in it (one folder of pictures a class is expected)")
    if len(shape) != 3 or shape[-1] not in (1, 3):
        raise UsageError(f"{path}: pictures need an input of (height, width, 1) or (height, width, 3)")
    _need_room(path, 5 * len(files) * math.prod(shape))  # as bytes, then as floats
    images = [_picture(file, shape) for file, _ in files]
    return Samples((np.stack(images),), np.array([n for _, n in files]), _told(path, len(images)))


def _picture(file: Path, shape: tuple[int, ...]) -> Array:
    """Grey or RGB, brought to the size of the input."""
    try:
        from PIL import Image
    except ImportError:
        extra = "pip install 'neural-debugger[images]'"
        raise BackendMissing(f"{file}: pictures need Pillow, which is not installed: {extra}") from None
    height, width, channels = shape
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as picture:
                small = picture.convert("L" if channels == 1 else "RGB").resize((width, height))
        return np.asarray(small, dtype=np.uint8).reshape(shape)
    except (OSError, ValueError, SyntaxError) as error:  # SyntaxError: how Pillow calls a damaged PNG
        raise UsageError(f"{file}: cannot be read as a picture: {error}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise UsageError(f"{file}: refused: so many pixels are no picture but an attack on memory") from None


def _told(path: Path, count: int) -> str:
    return f"{path} ({count:,} sample{'' if count == 1 else 's'})"
