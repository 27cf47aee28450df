"""What is new in files, put where every worker of Spark can read it and where it stays until it is in bronze.

Files of a log move while they are read: they grow, are set aside under another name, are compressed and removed.  So
what is new of them is first copied into the lake, cut into whole lines.  A batch is one folder, `landing/<batch>`, with
the book (`book`) as it is once the batch is taken.  The folder is made beside its place and put there in one step, and
from then on the batch is what it is: a run that is killed finds it and takes it in again, the same bytes under the same
name.  When it is in bronze and silver its book goes to `checkpoints/files`, and the folder goes.

A last line without a newline is taken where it is a whole JSON object, or where nothing can follow it any more (the
file is set aside, or compressed); else it waits for its end.
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
from gateway.pipeline.manifest import HEAD_BYTES, TAIL_BYTES, Book, Seen, digest, read_book

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from gateway.pipeline.lake import Lake

LANDING: Final = "landing"
CHECKPOINTS: Final = "checkpoints/files"

# Spark leaves files out whose names begin like this.
_BOOK: Final = "_book.json"
_ABOUT: Final = "_about.json"
_CHUNK: Final = 4 << 20
_ASIDE: Final = re.compile(r"\.[0-9]{8}T[0-9]{6}Z(?:-[0-9]{4})?$|\.[0-9]+$")
_MAKING: Final = ".making"


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines that have landed: the batch's name, the folder's URL, and when it was made (Unix seconds)."""

    name: str
    url: str
    taken_at: float


class Landing:
    """The landing place of one lake.  There is one at a time."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._folder = Folder(spark, lake.place(LANDING))
        self._books = Folder(spark, lake.place(CHECKPOINTS))

    def unfinished(self) -> Batch | None:
        """The batch that landed and is not known to be in bronze and silver."""
        for name in self._folder.folders():
            if name.endswith(_MAKING):
                self._folder.remove(name)
        for name in self._folder.folders():
            if not self._books.exists(f"{name}.json"):
                return self._batch(name)
            # It was done, and whoever removed it did not come to the end: what is left of it is not the batch.
            self._folder.remove(name)
        return None

    def land(self, files: list[Path], taken_at: float) -> Batch | None:
        """Land what is new in these files; None where nothing is.  PipelineFailed where a file cannot be read."""
        book = self._book()
        following = book.next()
        known = {str(path) for path in files}
        following.seen = {path: seen for path, seen in following.seen.items() if path in known}
        name = f"{book.lineage}-{book.next_batch:08d}"
        making = f"{name}{_MAKING}"
        with self._workplace(making) as place:
            landed = 0
            for path in files:
                landed += _land(path, following, place / landed_name(landed, path.name))
            if not landed:
                return None
            (place / _BOOK).write_text(following.written())
            (place / _ABOUT).write_text(json.dumps({"taken_at": taken_at}))
        self._folder.rename(making, name)
        return self._batch(name)

    def done(self, batch: Batch) -> None:
        """The batch is in bronze and silver."""
        text = self._folder.text(f"{batch.name}/{_BOOK}")
        mine = f"{batch.name}.json"
        if not self._books.exists(mine):
            self._books.make()
            self._books.write_text(mine, text)
        self._folder.remove(batch.name)
        for name in self._books.files():
            if name.endswith(".json") and name < mine:
                self._books.remove(name)

    def _book(self) -> Book:
        names = [name for name in self._books.files() if name.endswith(".json") and not name.startswith(".")]
        if not names:
            return Book(lineage=uuid.uuid4().hex[:8])
        try:
            return read_book(self._books.text(names[-1]))
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineFailed(f"{self._books.url}/{names[-1]}: {error}") from None

    def _batch(self, name: str) -> Batch:
        about = json.loads(self._folder.text(f"{name}/{_ABOUT}"))
        return Batch(name, f"{self._folder.url}/{name}", float(about["taken_at"]))

    @contextmanager
    def _workplace(self, name: str) -> Iterator[Path]:
        """A folder of this machine that is `name` in the landing place afterwards, unless nothing was put into it."""
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


def _land(path: Path, book: Book, target: Path) -> int:
    """Put what is new of a file into `target`, and into the book: 1 where something was, else 0."""
    try:
        state = path.stat()
        seen = Seen(state.st_size, state.st_mtime_ns, state.st_ino)
        if book.seen.get(str(path)) == seen:
            return 0
        with _opened(path) as file:
            head = file.readline(HEAD_BYTES + 2)
            if not head:
                return 0
            key, begin = book.place_of(head, lambda at: _tail_at(file, at))
            is_over = _is_compressed(path) or _ASIDE.search(path.name) is not None
            end, waits = _copy(file, begin, target, is_over=is_over)
            tail = _tail_at(file, end)
    except FileNotFoundError:
        # Set aside or removed since it was found: under its new name it is found the next time.
        return 0
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PipelineFailed(f"{path}: cannot be read: {why}") from None
    if not waits:
        book.seen[str(path)] = seen
    if end == begin:
        target.unlink(missing_ok=True)
        return 0
    if tail is None:
        raise PipelineFailed(f"{path}: was cut while it was read")
    book.take(key, end, tail)
    return 1


def _copy(file: IO[bytes], begin: int, target: Path, *, is_over: bool) -> tuple[int, bool]:
    """Copy whole lines from byte `begin` on: up to which byte, and whether a rest waits for its end."""
    file.seek(begin)
    end = begin
    held = b""
    left_out = 0
    with target.open("wb") as out:
        while chunk := file.read(_CHUNK):
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                # A line that never ends must not fill the memory; it is refused for its length later on.
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
            # Two files of a batch are never one line.
            out.write(held + b"\n")
            end += len(held) + left_out
            held = b""
    return end, bool(held)


def _tail_at(file: IO[bytes], at: int) -> str | None:
    """The digest of what stands before byte `at`; None where the file is shorter."""
    begin = max(0, at - TAIL_BYTES)
    file.seek(begin)
    tail = file.read(at - begin)
    return digest(tail) if len(tail) == at - begin else None


def _is_object(text: bytes) -> bool:
    # What is cut off in the middle is no object: its end is missing.
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_compressed(path: Path) -> bool:
    return path.suffix in (".gz", ".zst")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes as they are when not compressed."""
    with path.open("rb") as raw:
        if not _is_compressed(path):
            yield raw
            return
        # Whole and once: going back in a compressed file means to begin it again.
        with tempfile.TemporaryFile() as plain:
            reader: Any = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else _zstandard(raw)
            with reader:
                shutil.copyfileobj(reader, plain, _CHUNK)
            plain.seek(0)
            yield plain


def _zstandard(raw: IO[bytes]) -> Any:
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False)


def landed_name(number: int, name: str) -> str:
    """What a file is called here: Spark takes some endings for compressed, and some beginnings for hidden."""
    return f"{number:06d}-{re.sub(r'[^A-Za-z0-9._-]', '_', name)[-100:]}.log"


def source_name(landed: Column) -> Column:
    """What it was called where it came from."""
    from pyspark.sql import functions as f

    return f.regexp_extract(landed, r"^[0-9]+-(.*)\.log$", 1)
