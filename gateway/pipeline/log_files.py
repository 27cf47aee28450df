"""Read the new lines of log files, and write them as Parquet for Spark's workers.

Log files grow, and are renamed, compressed and removed while they are read.  Workers on other machines cannot read them
at all.  So the driver reads the new lines, in whole, and writes them to files in `<lake>/spool`.  These files are
removed when the lines are in bronze.  The end of the read part of each file is committed with the lines
(`gateway.pipeline.manifest`).  If a run is killed before the commit, the next run reads the same lines.

A last line without a newline is read if it is a complete JSON object, or if no more bytes can follow because the file
is rotated or compressed.  Otherwise a later ingest reads the line, when it is complete.

Lines in the formats of container runtimes are unwrapped (`gateway.pipeline.wrapped`).
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.manifest import HEAD_BYTES, TAIL_BYTES, Manifest, Seen, digest
from gateway.pipeline.store import Store
from gateway.pipeline.tables import LINES
from gateway.pipeline.wrapped import is_foreign, unwrapped

SPOOL: Final = replace(LINES.with_columns(("line", "source")), place="spool", kind=None, partition_by=())
BATCH_BYTES: Final = 2 << 30
"""Bytes of lines after which a batch ends."""
_FILE_BYTES: Final = 64 << 20
"""Bytes of lines in one file of the spool.  A batch has several files, so that several tasks can read it."""
_CHUNK: Final = 4 << 20
# The names that gateways, logrotate, Docker and Kubernetes give to rotated files.
_ASIDE: Final = re.compile(r"\.[0-9]{8}T[0-9]{6}Z(?:-[0-9]{4})?$|\.[0-9]+$|\.[0-9]{8}-[0-9]{6}$")
_CODECS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_PACKED: Final = frozenset({*_CODECS, ".xz", ".parquet"})
_UNREADABLE: Final = (OSError, EOFError, lzma.LZMAError, pa.ArrowException)


@dataclass(slots=True)
class LogFiles:
    """Reads the new lines of log files.  `unreadable` has a line for each file that could not be read."""

    store: Store
    manifest: Manifest
    unreadable: list[str] = field(default_factory=list)

    def batches(self, files: Sequence[Path]) -> Iterator[_Spool]:
        """Yield batches of new lines.

        `manifest` then includes the lines of the batch.  The caller must commit the manifest before it requests the
        next batch, because this request removes the files of the current batch.
        """
        self.manifest.forget_unlisted({str(path) for path in files})
        spool = _Spool(self.store)
        try:
            for path in files:
                for _ in self._read(path, spool):
                    spool.finish()
                    yield spool
                    spool.clear()
            if spool.size:
                spool.finish()
                yield spool
        finally:
            spool.clear()

    def forget(self, files: Sequence[Path]) -> None:
        """Forget how much of these files was read, so that they are read again from their beginnings."""
        for path in files:
            # `_read` reports files that cannot be read.
            with suppress(*_UNREADABLE), _opened(path) as file:
                if head := _head(path, file):
                    key, _ = self.manifest.locate(head, partial(_tail_at, file))
                    self.manifest.forget(key)

    def _read(self, path: Path, spool: _Spool) -> Iterator[None]:
        """Read the new lines of a file.  Yields each time that the batch is full."""
        with ExitStack() as stack:
            try:
                state = path.stat()
                seen = Seen(state.st_size, state.st_mtime_ns, state.st_ino)
                if self.manifest.seen.get(str(path)) == seen:
                    return
                file = stack.enter_context(_opened(path))
                head = _head(path, file)
            except FileNotFoundError:
                # The file was renamed or removed since it was listed.  The next run finds it under its new name.
                return
            except _UNREADABLE as error:
                why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self.unreadable.append(f"{path}: cannot be read: {why}")
                return
            if not head:
                self.manifest.seen[str(path)] = seen
                return
            if path.suffix.lower() != ".parquet" and is_foreign(head):
                self.unreadable.append(
                    f"{path}: its lines hold the gateway's inside another format than those of container runtimes "
                    "(CRI, Docker's json-file): take them out first"
                )
                return
            key, begin = self.manifest.locate(head, partial(_tail_at, file))
            is_over = _ASIDE.search(path.name) is not None or path.suffix.lower() in _PACKED
            is_all = False
            while not is_all:
                end, is_all = _copy(file, begin, spool, path.name, is_over=is_over)
                if end > begin:
                    if (tail := _tail_at(file, end)) is None:
                        raise PipelineFailed(f"{path}: was cut while it was read")
                    self.manifest.take(key, end, tail)
                if not is_all:
                    yield
                begin = end
        self.manifest.seen[str(path)] = seen


class _Spool:
    """The files of one batch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self.paths: list[str] = []
        """Paths of the written files, in the folder of the spool."""
        self.sources: dict[str, None] = {}
        """Names of the log files that the lines are from."""
        self.size = 0
        """Bytes of all lines of the batch so far."""

    def add(self, lines: bytes, source: str) -> None:
        """Add whole lines, each with its newline."""
        texts = split_lines(lines)
        self._held.append(pa.table({"line": texts, "source": pa.repeat(source, len(texts))}))
        self._held_bytes += len(lines)
        self.sources[source] = None
        self.size += len(lines)
        if self._held_bytes >= _FILE_BYTES:
            self.finish()

    def finish(self) -> None:
        """Write the lines that are still in memory to a file."""
        if self._held:
            self.paths.append(f"{uuid.uuid4()}.parquet")
            with self._store.writing(f"{SPOOL.place}/{self.paths[-1]}") as out:
                pq.write_table(pa.concat_tables(self._held), out, compression="zstd", use_dictionary=["source"])
        self._held, self._held_bytes = [], 0

    def clear(self) -> None:
        """Remove the files of the batch, and begin a new one."""
        for path in self.paths:
            self._store.remove(f"{SPOOL.place}/{path}")
        self.paths, self.sources, self._held, self._held_bytes, self.size = [], {}, [], 0, 0


def split_lines(lines: bytes) -> pa.Array:
    """Split text into its lines, without their newlines; `lines` must end with a newline.

    Bytes that are not UTF-8 are replaced.
    """
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
    # The end of each line after all newlines have been removed.
    offsets = np.append(0, ends - np.arange(len(ends))).astype(np.int32)
    texts = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(lines.translate(None, b"\n")))
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return split_lines(lines.decode(errors="replace").encode())
    return texts


def _copy(file: IO[bytes], begin: int, spool: _Spool, source: str, *, is_over: bool) -> tuple[int, bool]:
    """Copy whole lines from byte `begin` on, until the batch is full or the file ends.

    Return the position after the copied lines, and whether the end of the file was reached.
    """
    file.seek(begin)
    end = begin
    held = b""
    left_out = 0
    while spool.size < BATCH_BYTES and (chunk := file.read(_CHUNK)):
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            # An endless line must not fill the memory.  A part of it is enough, because bronze rejects it as too long.
            if len(held) < _CHUNK:
                held += chunk
            else:
                left_out += len(chunk)
            continue
        lines = held + (chunk[chunk.index(b"\n") : cut] if left_out else chunk[:cut])
        printed, taken = unwrapped(lines, is_all=len(lines) > 2 * _CHUNK)
        spool.add(printed, source)
        end += len(held) + left_out + cut - (len(lines) - taken)
        held, left_out = lines[taken:] + chunk[cut:], 0
    if spool.size >= BATCH_BYTES:
        return end, False
    if held and (is_over or _is_object(held)):
        # Add a newline, so that the line is not joined with the first line of the next file.
        printed, taken = unwrapped(held if held.endswith(b"\n") else held + b"\n", is_all=is_over)
        spool.add(printed, source)
        if taken:
            end += min(taken, len(held)) + left_out
    return end, True


def _tail_at(file: IO[bytes], at: int) -> str | None:
    """Return a digest of the `TAIL_BYTES` bytes before position `at`; None if the file is shorter."""
    begin = max(0, at - TAIL_BYTES)
    file.seek(begin)
    tail = file.read(at - begin)
    return digest(tail) if len(tail) == at - begin else None


def _is_object(text: bytes) -> bool:
    # An incomplete line lacks the closing brace.
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open the file's lines, decompressed."""
    suffix = path.suffix.lower()
    with path.open("rb") as raw:
        if suffix not in _PACKED:
            yield raw
            return
        # Decompress the whole file once.  Seeking back in a compressed file would read it from its beginning.
        with tempfile.TemporaryFile() as plain:
            if suffix == ".parquet":
                _unpack_parquet(raw, plain)
            else:
                with lzma.LZMAFile(raw) if suffix == ".xz" else pa.input_stream(raw, _CODECS[suffix]) as reader:
                    shutil.copyfileobj(reader, plain, _CHUNK)
            plain.seek(0)
            yield plain


def _head(path: Path, file: IO[bytes]) -> bytes:
    """Return the bytes that identify the file, its first line; empty for an empty file."""
    head = file.readline(HEAD_BYTES + 2)
    # A lake's Parquet files hold lines of logs.  Add the name, so that such a file is not identified as one of those
    # logs.
    return path.name.encode() + head if head and path.suffix.lower() == ".parquet" else head


def _unpack_parquet(raw: IO[bytes], plain: IO[bytes]) -> None:
    """Write the column `line` of a Parquet file, such as one of bronze, as lines."""
    with pq.ParquetFile(raw) as parquet:
        if "line" not in parquet.schema_arrow.names:
            raise EOFError("a Parquet file without a column `line`")
        for rows in parquet.iter_batches(columns=["line"]):
            plain.writelines(f"{line}\n".encode() for line in rows.column("line").to_pylist())
