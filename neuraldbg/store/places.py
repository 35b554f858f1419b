"""Where a data set lies: a folder, or any file system that pyarrow knows by its URL (s3://, gs://, abfs://, hdfs://)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from neuraldbg.errors import StoreDenied, StoreError, StoreNotFound
from neuraldbg.store.extras import needed

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FOLDED: Final = re.compile(r"([a-z][a-z0-9+.-]+):/(?!/)(.*)", re.IGNORECASE | re.DOTALL)
_DENIED: Final = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY",
    "SIGNATURE",
    "Forbidden",
    "Unauthorized",
    "status 403",
    "status 401",
    "NO_CREDENTIALS",
    "INVALID_CLIENT_TOKEN",
)
_ABSENT: Final = ("NO_SUCH_BUCKET", "RESOURCE_NOT_FOUND", "NO_SUCH_KEY", "status 404", "Path does not exist")
CONNECT_S: Final = 5.0
REQUEST_S: Final = 10.0  # without a byte, not for the whole
TRIES: Final = 2  # of the library underneath; who writes tries again with pauses of its own


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def url_in(path: Path | str) -> str | None:
    """The URL that a path was meant to be: `Path` makes one slash of two."""
    text = str(path)
    if is_url(text):
        return text
    folded = _FOLDED.fullmatch(text)
    if folded is None:
        return None
    return f"{folded[1]}://{'/' if folded[1].lower() == 'file' else ''}{folded[2]}"


@dataclass(frozen=True, slots=True)
class Place:
    """A prefix on a file system; names below it have `/` between their parts."""

    filesystem: Any
    path: str
    shown: str  # in messages: never with a password

    @property
    def local(self) -> bool:
        return bool(self.filesystem.type_name == "local")

    def at(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def read(self, name: str) -> bytes:
        with told(f"{self.shown}/{name}"), self.filesystem.open_input_stream(self.at(name)) as file:
            return bytes(file.read())

    def write(self, name: str, data: bytes) -> None:
        """Whole or not at all: an object store puts an object at once, a folder gets it by renaming."""
        with told(f"{self.shown}/{name}"):
            if not self.local:
                # background_writes would hide an error until the file is closed, in a thread of its own
                with self.filesystem.open_output_stream(self.at(name)) as file:
                    file.write(data)
                return
            path = Path(self.at(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.draft")
            try:
                draft.write_bytes(data)
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """What lies directly below; empty where there is nothing."""
        fs = needed("pyarrow.fs", "reading a Parquet data set")
        with told(self.shown):
            found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def check(self) -> None:
        """Raises where this is no place: no such bucket, not allowed to see it, not reachable."""
        if self.local:
            with told(self.shown):
                Path(self.path).mkdir(parents=True, exist_ok=True)
            return
        fs = needed("pyarrow.fs", "writing a Parquet data set")
        bucket = self.path.partition("/")[0]
        with told(self.shown):
            info = self.filesystem.get_file_info(bucket)
        if info.type == fs.FileType.NotFound:
            raise StoreNotFound(
                f"{self.shown}: there is no bucket {bucket!r} (or it is not yours to see); make it first"
            )


def open_place(given: str | Path) -> Place:
    """The place of a URL or a folder. Nothing is asked of a server yet."""
    url = url_in(given)
    fs = needed("pyarrow.fs", f"{given}" if url else "a Parquet data set")
    if url is None:
        return Place(fs.LocalFileSystem(), str(Path(given).absolute()), str(given))
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}".rstrip("/")
    if parts.username or parts.password:
        raise StoreError(f"{shown}: no passwords in a URL, it is written down with the run; use the environment")
    if parts.scheme.lower() in ("s3", "s3a"):
        return Place(_s3(fs, parse_qs(parts.query)), f"{parts.hostname}{parts.path}".rstrip("/"), shown)
    with told(shown):
        filesystem, path = fs.FileSystem.from_uri(url)
    return Place(filesystem, path.rstrip("/"), shown)


def _s3(fs: Any, query: dict[str, list[str]]) -> Any:
    """As the environment says (AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL, AWS_REGION, ...), with short tries."""
    given = {name: values[-1] for name, values in query.items() if name in ("endpoint_override", "scheme", "region")}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and "endpoint_override" not in given:
        parts = urlsplit(endpoint)
        given |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    return fs.S3FileSystem(
        **given,
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
        retry_strategy=fs.AwsDefaultS3RetryStrategy(max_attempts=TRIES),
        background_writes=False,
        allow_delayed_open=True,  # one request for a small object, not three
    )


@contextmanager
def told(where: str) -> Iterator[None]:
    """Turns what the library underneath says into one line that names the place and what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreNotFound(f"{where}: there is nothing here") from error
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        if isinstance(error, PermissionError) or any(word in text for word in _DENIED):
            raise StoreDenied(f"{where}: not allowed; check the credentials in the environment ({text})") from error
        if any(word in text for word in _ABSENT):
            raise StoreNotFound(f"{where}: there is nothing here ({text})") from error
        raise StoreError(f"{where}: {text or type(error).__name__}") from error
