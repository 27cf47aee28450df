"""New lines of log files, as Parquet for Spark's workers.

Log files change while they are read: they grow, and are renamed, compressed and removed, and workers on other machines
cannot read them.  So the driver reads what is new, in whole lines, and writes it to files beneath `<lake>/spool`, which
are removed once the lines are in bronze.  How far each file has been read is committed with the lines
(`gateway.pipeline.manifest`); a run that is killed before has read nothing.

A last line without a newline is read if it is a whole JSON object, or if nothing can follow it (the file is rotated or
compressed); otherwise it waits for its end.

Lines as container runtimes keep them are unwrapped (`gateway.pipeline.wrapped`).
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
"""Bytes of lines in one file of the spool, so that several tasks read it."""
_CHUNK: Final = 4 << 20
# As gateways, logrotate and Docker, and Kubernetes name files that they have set aside.
_ASIDE: Final = re.compile(r"\.[0-9]{8}T[0-9]{6}Z(?:-[0-9]{4})?$|\.[0-9]+$|\.[0-9]{8}-[0-9]{6}$")
_CODECS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_PACKED: Final = frozenset({*_CODECS, ".xz", ".parquet"})
_UNREADABLE: Final = (OSError, EOFError, lzma.LZMAError, pa.ArrowException)


@dataclass(slots=True)
class LogFiles:
    """Reads what is new in log files; `unreadable` has a line for each file that could not be read."""

    store: Store
    manifest: Manifest
    unreadable: list[str] = field(default_factory=list)

    def batches(self, files: Sequence[Path]) -> Iterator[_Spool]:
        """Batches of new lines.

        `manifest` has meanwhile what is read; a batch's files are removed when the next one is asked for.
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
        """Read these files from their beginnings."""
        for path in files:
            # An unreadable file is reported when it is read.
            with suppress(*_UNREADABLE), _opened(path) as file:
                if head := _head(path, file):
                    key, _ = self.manifest.locate(head, partial(_tail_at, file))
                    self.manifest.forget(key)

    def _read(self, path: Path, spool: _Spool) -> Iterator[None]:
        """Read what is new of a file.  Yields each time that the batch is full."""
        with ExitStack() as stack:
            try:
                state = path.stat()
                seen = Seen(state.st_size, state.st_mtime_ns, state.st_ino)
                if self.manifest.seen.get(str(path)) == seen:
                    return
                file = stack.enter_context(_opened(path))
                head = _head(path, file)
            except FileNotFoundError:
                # Renamed or removed since the listing; the next run finds it under its new name.
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
        """Its files in the folder of the spool."""
        self.sources: dict[str, None] = {}
        """Names of the files that its lines are of."""
        self.size = 0
        """Bytes of lines so far."""

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
        """Write what is held, if anything is."""
        if self._held:
            self.paths.append(f"{uuid.uuid4()}.parquet")
            with self._store.writing(f"{SPOOL.place}/{self.paths[-1]}") as out:
                pq.write_table(pa.concat_tables(self._held), out, compression="zstd", use_dictionary=["source"])
        self._held, self._held_bytes = [], 0

    def clear(self) -> None:
        """Remove the files, and begin a new batch."""
        for path in self.paths:
            self._store.remove(f"{SPOOL.place}/{path}")
        self.paths, self.sources, self._held, self._held_bytes, self.size = [], {}, [], 0, 0


def split_lines(lines: bytes) -> pa.Array:
    """The texts of whole lines, each with its newline; bytes that are not UTF-8 are replaced."""
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
    # Where each line ends once the newlines before it are gone.
    offsets = np.append(0, ends - np.arange(len(ends))).astype(np.int32)
    texts = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(lines.translate(None, b"\n")))
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return split_lines(lines.decode(errors="replace").encode())
    return texts


def _copy(file: IO[bytes], begin: int, spool: _Spool, source: str, *, is_over: bool) -> tuple[int, bool]:
    """Copy whole lines from byte `begin` on, until the batch is full.

    Returns the end of the copy, and whether nothing but an unfinished line is left.
    """
    file.seek(begin)
    end = begin
    held = b""
    left_out = 0
    while spool.size < BATCH_BYTES and (chunk := file.read(_CHUNK)):
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            # A line without an end must not fill the memory; bronze rejects it for its length.
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
        # Lines of two files must not be joined.
        printed, taken = unwrapped(held if held.endswith(b"\n") else held + b"\n", is_all=is_over)
        spool.add(printed, source)
        if taken:
            end += min(taken, len(held)) + left_out
    return end, True


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


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's lines, decompressed."""
    suffix = path.suffix.lower()
    with path.open("rb") as raw:
        if suffix not in _PACKED:
            yield raw
            return
        # Unpack it once, as a whole: seeking back in a compressed file starts from its beginning.
        with tempfile.TemporaryFile() as plain:
            if suffix == ".parquet":
                _unpack_parquet(raw, plain)
            else:
                with lzma.LZMAFile(raw) if suffix == ".xz" else pa.input_stream(raw, _CODECS[suffix]) as reader:
                    shutil.copyfileobj(reader, plain, _CHUNK)
            plain.seek(0)
            yield plain


def _head(path: Path, file: IO[bytes]) -> bytes:
    """What the file is known by; empty if it is."""
    head = file.readline(HEAD_BYTES + 2)
    # A lake's files have the lines of logs, which would be taken for the logs themselves.
    return path.name.encode() + head if head and path.suffix.lower() == ".parquet" else head


def _unpack_parquet(raw: IO[bytes], plain: IO[bytes]) -> None:
    """Write the column `line` of a Parquet file, such as those of bronze, as lines."""
    with pq.ParquetFile(raw) as parquet:
        if "line" not in parquet.schema_arrow.names:
            raise EOFError("a Parquet file without a column `line`")
        for rows in parquet.iter_batches(columns=["line"]):
            plain.writelines(f"{line}\n".encode() for line in rows.column("line").to_pylist())
