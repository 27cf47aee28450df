"""Access to the files of a lake, in a local folder or in an object store.

Spark's driver and its workers both use this module, so an object store needs no libraries of Hadoop.  Credentials and
settings of the object store have the names of delta-rs.  They come from the driver's environment (`AWS_…`, `AZURE_…`,
`GOOGLE_…`) and are sent to the workers with the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as fs
from deltalake.fs import DeltaStorageHandler

from gateway.pipeline.errors import PipelineFailed

_BUFFER_BYTES: Final = 1 << 20
_ENDPOINT: Final = "AWS_ENDPOINT_URL"
_SETTINGS: Final = ("AWS_", "AZURE_", "GOOGLE_")


def settings_of(url: str, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the settings of the object store of `url`; empty for a local folder.  Raises PipelineFailed."""
    if "://" not in url:
        return ()
    if url.startswith("s3") and environ.get(_ENDPOINT) == "":
        raise PipelineFailed(f"{_ENDPOINT} is empty: set it to the store's URL, or unset it")
    return tuple(sorted((name, value) for name, value in environ.items() if name.startswith(_SETTINGS)))


@dataclass(frozen=True, slots=True)
class Store:
    """The files of one lake.  Paths are relative to the lake's URL and use `/`."""

    url: str
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def local(self) -> Path | None:
        """The local folder; None for an object store."""
        return None if "://" in self.url else Path(self.url)

    @property
    def files(self) -> fs.FileSystem:
        """The file system whose root is the lake."""
        return _files(self)

    @contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        """Open a new file for sequential writing."""
        if self.local is not None:
            self.files.create_dir(path.rpartition("/")[0], recursive=True)
        # delta-rs accepts only `bytes`.  The buffer also converts everything else to them.
        with self.files.open_output_stream(path, buffer_size=_BUFFER_BYTES) as out:
            yield out

    def is_empty(self) -> bool:
        """Whether the lake has no files or folders."""
        return not self.files.get_file_info(fs.FileSelector("", allow_not_found=True))

    def has(self, path: str) -> bool:
        """Whether the file exists."""
        return bool(self.files.get_file_info(path).type == fs.FileType.File)

    def size_and_time(self, path: str) -> tuple[int, int]:
        """Return a file's size in bytes, and when it was written (Unix milliseconds)."""
        info = self.files.get_file_info(path)
        return info.size, (info.mtime_ns or 0) // 1_000_000

    def write(self, path: str, content: bytes) -> None:
        """Write a small file."""
        with self.writing(path) as out:
            out.write(content)

    def read(self, path: str) -> bytes:
        """Return the content of a small file.  Raises FileNotFoundError."""
        with self.files.open_input_file(path) as file:
            return bytes(file.read())

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        with suppress(FileNotFoundError):
            self.files.delete_file(path)

    def listed(self, folder: str) -> list[tuple[str, int]]:
        """Return the paths of all files in a folder and its subfolders, with their times (Unix milliseconds)."""
        found = self.files.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
        return [(info.path, (info.mtime_ns or 0) // 1_000_000) for info in found if info.type == fs.FileType.File]


@cache
def _files(store: Store) -> fs.FileSystem:
    if (folder := store.local) is not None:
        return fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    return fs.PyFileSystem(DeltaStorageHandler(store.url, dict(store.settings)))
