"""What a data set says it holds: one manifest per rank, written by nobody else, and one page that names the ranks."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from neuraldbg.errors import StoreNotFound, TraceDamaged, TraceNotFound
from neuraldbg.store.layout import DATASET_FILE, MANIFEST_FILE, PLAIN_NAME, about, checked_json, rank_folder
from neuraldbg.store.places import Place


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of the data set, and how to tell that it is whole."""

    file: str
    size_bytes: int
    crc32: int

    def read(self, place: Place) -> bytes:
        where = f"{place.shown}/{self.file}"
        data = place.read(self.file)
        if len(data) != self.size_bytes:
            raise TraceDamaged(f"{where} is torn: {len(data):,} bytes of {self.size_bytes:,}; copy it again")
        if zlib.crc32(data) != self.crc32:
            raise TraceDamaged(f"{where} is damaged: it fails its checksum; copy it again")
        return data


def stored(name: str, data: bytes) -> Stored:
    return Stored(name, len(data), zlib.crc32(data))


@dataclass(frozen=True, slots=True)
class Part(Stored):
    """Rows of one table: those numbered from `first_row` up to `end_row`, less those that were never kept."""

    rows: int
    first_row: int
    end_row: int
    step_min: int | None = None
    step_max: int | None = None


@dataclass(slots=True)
class Manifest:
    """The parts of one rank, by table, in the order of their rows."""

    rank: int
    tables: dict[str, list[Part]] = field(default_factory=dict)
    files: list[Stored] = field(default_factory=list)
    ended: bool = False  # nothing will follow
    lost: dict[str, int] = field(default_factory=dict)  # rows that were deleted before they could be put here
    written_s: float | None = None  # since 1970: of a run that goes on, its last sign of life
    every_s: float | None = None  # and how often it gives one

    def next_row(self, table: str) -> int:
        parts = self.tables.get(table)
        return parts[-1].end_row if parts else 0

    def add(self, table: str, part: Part) -> None:
        """Rows between the last part and this one are gone: the disk limit was faster."""
        gone = part.first_row - self.next_row(table)
        if gone > 0:
            self.lost[table] = self.lost.get(table, 0) + gone
        self.tables.setdefault(table, []).append(part)

    def parts(self) -> Iterable[tuple[str, Part]]:
        return ((table, part) for table, parts in self.tables.items() for part in parts)

    def encoded(self) -> bytes:
        return json.dumps({**about(), **asdict(self)}, separators=(",", ":")).encode()

    @property
    def name(self) -> str:
        return f"{rank_folder(self.rank)}/{MANIFEST_FILE}"


def manifest_of(data: bytes, where: str) -> Manifest:
    told = checked_json(data, where)
    try:
        tables = {str(name): [Part(**_known(Part, part)) for part in parts] for name, parts in told["tables"].items()}
        files = [Stored(**_known(Stored, one)) for one in told["files"]]
        found = Manifest(int(told["rank"]), tables, files, bool(told["ended"]), dict(told["lost"]))
        found.written_s, found.every_s = _seconds(told.get("written_s")), _seconds(told.get("every_s"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceDamaged(f"{where} is no manifest ({error!r}); export the run again") from error
    _check_names([one.file for one in (*found.files, *(part for _, part in found.parts()))], where)
    return found


def _known(kind: type[Stored], told: Mapping[str, Any]) -> dict[str, Any]:
    """A later version may say more of a file."""
    return {one.name: told[one.name] for one in fields(kind) if one.name in told}


def _seconds(told: Any) -> float | None:
    return None if told is None else float(told)


def _check_names(names: Iterable[str], where: str) -> None:
    odd = [name for name in names if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name)]
    if odd:
        raise TraceDamaged(f"{where} names files outside the data set: {odd[0]!r}")


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set as found: its ranks and what belongs to the run as a whole."""

    place: Place
    run: str
    ranks: tuple[int, ...]
    files: tuple[Stored, ...]
    manifests: Mapping[int, Manifest]
    missing: tuple[int, ...]  # ranks that have put nothing here yet
    left_out: tuple[str, ...]  # of the run directory

    @property
    def ended(self) -> bool:
        return not self.missing and all(each.ended for each in self.manifests.values())

    @property
    def folder_name(self) -> str:
        """The name of the run as that of a folder: what a data set says of itself leads nowhere else."""
        name = Path(self.run).name
        return name if name not in ("", "..") and "\0" not in name else "run"

    @property
    def heard_s(self) -> tuple[float, float] | None:
        """The last sign of life of a run that has not ended, in seconds since 1970, and how often one is to come."""
        told = [(one.written_s, one.every_s or 0.0) for one in self.manifests.values() if one.written_s is not None]
        return max(told, default=None) if not self.ended else None


def page_of(
    run: str,
    ranks: Iterable[int],
    files: Iterable[Stored],
    left_out: Iterable[str] = (),
    launch: Mapping[str, Any] | None = None,
) -> bytes:
    """The bytes of `dataset.json`; `launch` is what processes have in common that ship to one place together."""
    told = {"run": run, "ranks": sorted(ranks), "files": [asdict(one) for one in files], "left_out": sorted(left_out)}
    return json.dumps({**about(), **told, "launch": launch}, indent=1).encode()


def told_there(place: Place) -> dict[str, Any] | None:
    """What the page of a data set says, as it stands there; None where there is none."""
    try:
        return checked_json(place.read(DATASET_FILE), f"{place.shown}/{DATASET_FILE}")
    except StoreNotFound:
        return None


def open_dataset(place: Place) -> DataSet:
    """Reads the page and every rank's manifest: nothing is listed, so 1,024 ranks cost 1,025 small reads."""
    where = f"{place.shown}/{DATASET_FILE}"
    try:
        told = checked_json(place.read(DATASET_FILE), where)
        ranks = tuple(int(rank) for rank in told["ranks"])
        files = tuple(Stored(**_known(Stored, one)) for one in told["files"])
        run, left_out = str(told["run"]), tuple(map(str, told["left_out"]))
    except StoreNotFound as error:
        raise TraceNotFound(
            f"{place.shown} holds no {DATASET_FILE}, so it is no data set of `neural export --format parquet`"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise TraceDamaged(f"{where} does not say what it should ({error!r}); export the run again") from error
    _check_names([one.file for one in files], where)
    manifests = dict(_manifests(place, ranks))
    return DataSet(place, run, ranks, files, manifests, tuple(r for r in ranks if r not in manifests), left_out)


def _manifests(place: Place, ranks: Iterable[int]) -> Iterable[tuple[int, Manifest]]:
    from concurrent.futures import ThreadPoolExecutor

    def one(rank: int) -> tuple[int, Manifest] | None:
        name = f"{rank_folder(rank)}/{MANIFEST_FILE}"
        try:
            return rank, manifest_of(place.read(name), f"{place.shown}/{name}")
        except StoreNotFound:
            return None

    with ThreadPoolExecutor(16, "neuraldbg-manifests") as readers:
        return [found for found in readers.map(one, ranks) if found is not None]
