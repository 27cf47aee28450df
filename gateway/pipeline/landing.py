"""The landing folder: copies of new lines from log files, for Spark's workers, until the lines are in bronze.

Log files change while they are read: they grow, and are renamed, compressed and removed.  So new lines are first copied
into the lake, in whole lines.  A batch is one folder, `landing/<batch>`, with the manifest (`_book.json`) as it will be
once the batch is ingested.  The folder is made under a temporary name and renamed, and never changes afterwards.  After
a killed run the next one finds it and ingests it again: the same bytes under the same name.  Once the batch is in
bronze and silver, its manifest goes to `checkpoints/files` and the folder is removed.

A last line without a newline is copied if it is a whole JSON object, or if nothing can follow it (the file is rotated
or compressed); otherwise it waits for its end.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import zstandard

from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.folder import Folder
from gateway.pipeline.manifest import HEAD_BYTES, TAIL_BYTES, Manifest, Seen, digest, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from gateway.pipeline.lake import Lake

LANDING: Final = "landing"
CHECKPOINTS: Final = "checkpoints/files"

# Spark ignores files whose names begin with these.
_MANIFEST_FILE: Final = "_book.json"
_ABOUT: Final = "_about.json"
_CHUNK: Final = 4 << 20
_ASIDE: Final = re.compile(r"\.[0-9]{8}T[0-9]{6}Z(?:-[0-9]{4})?$|\.[0-9]+$")
_MAKING: Final = ".making"


@dataclass(frozen=True, slots=True)
class Batch:
    """A landed batch: its name, the URL of its folder, and the time it was made (Unix seconds)."""

    name: str
    url: str
    taken_at: float


class Landing:
    """The landing folder of one lake.  It has one writer at a time."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._folder = Folder(spark, lake.place(LANDING))
        self._manifests = Folder(spark, lake.place(CHECKPOINTS))

    def unfinished(self) -> Batch | None:
        """The batch that has landed and is not yet marked as done; None if there is none."""
        for name in self._folder.folders():
            if name.endswith(_MAKING):
                self._folder.remove(name)
        for name in self._folder.folders():
            if not self._manifests.exists(f"{name}.json"):
                return self._batch(name)
            # The batch was done and its removal was interrupted: the rest is not the batch.
            self._folder.remove(name)
        return None

    def land(self, files: list[Path], taken_at: float) -> Batch | None:
        """Copy new lines of these files into a batch; None without new lines.  Raises PipelineFailed."""
        manifest = self._manifest()
        following = manifest.next()
        known = {str(path) for path in files}
        following.seen = {path: seen for path, seen in following.seen.items() if path in known}
        name = f"{manifest.lineage}-{manifest.next_batch:08d}"
        making = f"{name}{_MAKING}"
        with self._workplace(making) as place:
            landed = 0
            for path in files:
                landed += _land(path, following, place / landed_name(landed, path.name))
            if not landed:
                return None
            (place / _MANIFEST_FILE).write_text(following.written())
            (place / _ABOUT).write_text(json.dumps({"taken_at": taken_at}))
        self._folder.rename(making, name)
        return self._batch(name)

    def done(self, batch: Batch) -> None:
        """Record that the batch is in bronze and silver, and remove it."""
        text = self._folder.text(f"{batch.name}/{_MANIFEST_FILE}")
        mine = f"{batch.name}.json"
        if not self._manifests.exists(mine):
            self._manifests.make()
            self._manifests.write_text(mine, text)
        self._folder.remove(batch.name)
        for name in self._manifests.files():
            if name.endswith(".json") and name < mine:
                self._manifests.remove(name)

    def _manifest(self) -> Manifest:
        names = [name for name in self._manifests.files() if name.endswith(".json") and not name.startswith(".")]
        if not names:
            return Manifest(lineage=uuid.uuid4().hex[:8])
        try:
            return read_manifest(self._manifests.text(names[-1]))
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineFailed(f"{self._manifests.url}/{names[-1]}: {error}") from None

    def _batch(self, name: str) -> Batch:
        about = json.loads(self._folder.text(f"{name}/{_ABOUT}"))
        return Batch(name, f"{self._folder.url}/{name}", float(about["taken_at"]))

    @contextmanager
    def _workplace(self, name: str) -> Iterator[Path]:
        """A local folder, which becomes `name` in the landing folder at the end of the block unless it is empty."""
        if (local := self._folder.local) is not None:
            place = local / name
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            yield place
            if not any(place.iterdir()):
                place.rmdir()
            return
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / name
            place.mkdir()
            yield place
            if any(place.iterdir()):
                self._folder.make()
                self._folder.put(place, name)


def _land(path: Path, manifest: Manifest, target: Path) -> int:
    """Put what is new of a file into `target`, and into the manifest: 1 where something was, else 0."""
    try:
        state = path.stat()
        seen = Seen(state.st_size, state.st_mtime_ns, state.st_ino)
        if manifest.seen.get(str(path)) == seen:
            return 0
        with _opened(path) as file:
            head = file.readline(HEAD_BYTES + 2)
            if not head:
                return 0
            key, begin = manifest.locate(head, lambda at: _tail_at(file, at))
            is_over = _is_compressed(path) or _ASIDE.search(path.name) is not None
            end, waits = _copy(file, begin, target, is_over=is_over)
            tail = _tail_at(file, end)
    except FileNotFoundError:
        # Renamed or removed since the listing; the next run finds it under its new name.
        return 0
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PipelineFailed(f"{path}: cannot be read: {why}") from None
    if not waits:
        manifest.seen[str(path)] = seen
    if end == begin:
        target.unlink(missing_ok=True)
        return 0
    if tail is None:
        raise PipelineFailed(f"{path}: was cut while it was read")
    manifest.take(key, end, tail)
    return 1


def _copy(file: IO[bytes], begin: int, target: Path, *, is_over: bool) -> tuple[int, bool]:
    """Copy whole lines from byte `begin` on; return the end of the copy, and whether an unfinished line is left."""
    file.seek(begin)
    end = begin
    held = b""
    left_out = 0
    with target.open("wb") as out:
        while chunk := file.read(_CHUNK):
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                # A line without an end must not fill the memory; bronze rejects it for its length.
                if len(held) < _CHUNK:
                    held += chunk
                else:
                    left_out += len(chunk)
                continue
            out.write(held)
            out.write(chunk[chunk.index(b"\n") : cut] if left_out else chunk[:cut])
            end += len(held) + left_out + cut
            held, left_out = chunk[cut:], 0
        if held and (is_over or _is_object(held)):
            # Lines of two files must not be joined.
            out.write(held + b"\n")
            end += len(held) + left_out
            held = b""
    return end, bool(held)


def _tail_at(file: IO[bytes], at: int) -> str | None:
    """The digest of the bytes before position `at`; None if the file is shorter."""
    begin = max(0, at - TAIL_BYTES)
    file.seek(begin)
    tail = file.read(at - begin)
    return digest(tail) if len(tail) == at - begin else None


def _is_object(text: bytes) -> bool:
    # A truncated line lacks the closing brace.
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_compressed(path: Path) -> bool:
    return path.suffix in (".gz", ".zst")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed."""
    with path.open("rb") as raw:
        if not _is_compressed(path):
            yield raw
            return
        # Decompress once, as a whole: seeking back in a compressed file starts from its beginning.
        with tempfile.TemporaryFile() as plain:
            reader: Any = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else _zstandard(raw)
            with reader:
                shutil.copyfileobj(reader, plain, _CHUNK)
            plain.seek(0)
            yield plain


def _zstandard(raw: IO[bytes]) -> Any:
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False)


def landed_name(number: int, name: str) -> str:
    """A file's name in the landing folder; Spark treats some suffixes as compressed and some prefixes as hidden."""
    return f"{number:06d}-{re.sub(r'[^A-Za-z0-9._-]', '_', name)[-100:]}.log"


def source_name(landed: Column) -> Column:
    """The file's original name, from its name in the landing folder."""
    from pyspark.sql import functions as f

    return f.regexp_extract(landed, r"^[0-9]+-(.*)\.log$", 1)
