"""Compression of bodies with gzip, br or zstd.  Each body is compressed once, and cached in addition to the plain bytes
(the stream's tape).

A body holds a range of a stream, from one offset to another, whose bytes never change.  One compressed form therefore
serves all readers, until the stream ends or its bytes are dropped (`forget_stream`).  Of the ranges with the same start
and coding, only the range that was compressed last is cached, because shorter ranges of a growing stream are not
requested again.  Compressed bytes count towards the cache budget.  To make room for them, the tapes of other streams
are evicted, but never the tape of the same stream.  The least recently used stream loses its compressed bytes first.

Small bodies are compressed on the event loop, larger ones in a thread (all libraries used here release the GIL).
Requests for the same body share one job, and a job finishes even if its readers have left.  Compression is an
optimisation: the plain bytes are sent if compression fails, takes too long, is overloaded or saves too little.  An
answer is compressed only when all its bytes are in memory, so that compression never delays bytes that could already be
sent.

If a compressed body contains both a secret and bytes that an attacker controls, its length can reveal the secret
(BREACH).  Set `compression = []` for routes whose streams mix secrets with such bytes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import brotli
import zstandard
from zlib_ng import zlib_ng

from gateway.aio.clock import Clock, wait_until
from gateway.engine.answer import Answer, BodyRun, Parts
from gateway.engine.read import Read
from gateway.limits.memory import SharedBytes
from gateway.protocol.coding import Coding, is_compressible
from gateway.protocol.etag import matched_coding, of_coding
from gateway.protocol.freshness_headers import parse_cache_control
from gateway.tape.costs import CODED_BODY_SHARE, CODED_COST, CODED_SHARE
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import MetricsRecorder

_log = logging.getLogger("gateway.coding")

INLINE_BYTES: Final = 1 << 14
"""The largest body that is compressed on the loop.  Compressing it takes 0.05 to 0.15 ms at the default levels, about
as long as handing the body to a thread."""

QUEUE_BYTES: Final = 32 << 20
"""The most bytes that may queue for the thread: 0.1 to 0.3 s of work.  Further bodies are sent plain."""

PATIENCE_S: Final = 1.0
"""How long a reader waits for its body to be compressed, in seconds.  After that the body is sent plain."""

_WORTH: Final = 0.95
"""A compressed body is used only if its size is at most this share of the plain body's size."""

_NICENESS: Final = 10
"""Added to the thread's niceness (sched(7)), so that the loop gets the core whenever it has work."""

_GZIP_WINDOW: Final = 31
"""15 bits of window, plus 16 for a gzip header.  zlib writes no time into this header, so equal bytes give equal
compressed bytes."""


def _zstd(data: bytes, level: int) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(data)


def _br(data: bytes, level: int) -> bytes:
    coded: bytes = brotli.compress(data, quality=level)
    return coded


def _gzip(data: bytes, level: int) -> bytes:
    coder = zlib_ng.compressobj(level, zlib_ng.DEFLATED, _GZIP_WINDOW)
    return coder.compress(data) + coder.flush()


CODERS: Final[Mapping[Coding, Callable[[bytes, int], bytes]]] = {Coding.ZSTD: _zstd, Coding.BR: _br, Coding.GZIP: _gzip}


def _yield_to_others() -> None:
    """Lower the priority of this thread, where threads have priorities."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS)


class _Job(NamedTuple):
    """A range of a stream, and the coding to use.  The compression level is not part of the job, because the route sets
    the level and a stream has only one route."""

    run: BodyRun
    coding: Coding


class Wanted(NamedTuple):
    """A range to be compressed, with its plain bytes."""

    job: _Job
    pieces: Sequence[bytes]
    size: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """The compressed form of the range up to `end`; `data` is None if compression saved too little."""

    end: str
    data: bytes | None
    cost: int
    shared: SharedBytes
    """The memory account of `data`, for the clients that receive it."""


class Coder:
    """Compresses answers.  Owns the compressed bytes, the jobs, and the thread that runs them."""

    def __init__(
        self, store: TapeStore, clock: Clock, metrics: MetricsRecorder, *, min_bytes: int, keep_bytes: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._min_bytes = min_bytes
        self._max_bytes = keep_bytes
        self.executor: Executor = ThreadPoolExecutor(1, "coding", _yield_to_others)
        self._making: dict[_Job, asyncio.Future[Any]] = {}
        self._queued_bytes = 0
        self._kept: OrderedDict[Stream, dict[tuple[str, Coding], _Kept]] = OrderedDict()
        self.cost = 0
        self.on_evict: Callable[[Stream], None] = lambda stream: None
        """Called when compressed bytes of a stream are evicted, so that users of these bytes drop their references."""

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __repr__(self) -> str:
        return f"<Coder {len(self)} bodies, {self.cost} bytes, {self.making} being coded>"

    @property
    def keep_bytes(self) -> int:
        """The most compressed bytes to cache, given the current cache budget."""
        return min(self._max_bytes, self._store.budget_bytes // CODED_SHARE)

    @property
    def making(self) -> int:
        """The number of bodies being compressed."""
        return len(self._making)

    # -- answers

    async def code(self, read: Read, answer: Answer) -> Answer:
        """Compress the answer with the coding that the reader prefers, if any.

        Changes and returns `answer`; the caller must still call its `close`.
        """
        wanted = self.wanted(read, answer)
        return answer if wanted is None else await self.coded(read, answer, wanted)

    async def coded(self, read: Read, answer: Answer, wanted: Wanted) -> Answer:
        """Compress an answer.  `wanted` is the result of the method `wanted` for this answer."""
        data = await self._make(wanted, read.route.levels[wanted.job.coding])
        return self._in_coding(answer, wanted, data)

    def code_now(self, read: Read, answer: Answer) -> Answer:
        """Like `code`, but without waiting: a body that would need the thread stays plain."""
        wanted = self.wanted(read, answer)
        if wanted is None:
            return answer
        is_small = wanted.size <= INLINE_BYTES
        data = self._make_here(wanted, read.route.levels[wanted.job.coding]) if is_small else None
        return self._in_coding(answer, wanted, data)

    def wanted(self, read: Read, answer: Answer) -> Wanted | None:
        """Return the range to compress for the answer; None if the answer is already in its final form."""
        if not read.route.codings or "ETag" not in answer.headers or "Content-Encoding" in answer.headers:
            return None
        if answer.status == 304:
            _vary(answer)
            named = matched_coding(read.if_none_match, answer.headers["ETag"], read.accepted)
            if named is not None:
                answer.headers["ETag"] = of_coding(answer.headers["ETag"], named)
            return None
        run, parts, coding = answer.run, answer.parts, read.accepted.best
        if run is None or parts is None or not is_compressible(answer.headers.get("Content-Type")):
            return None
        _vary(answer)
        if not run.may_be_kept:
            # The stream has dropped these bytes, so they must not be cached as its current bytes.
            return None
        if coding is None or "no-transform" in parse_cache_control(answer.headers.get("Cache-Control")):
            return None
        pieces = parts.complete_body(answer.is_json)
        if pieces is None:
            return None
        size = sum(map(len, pieces))
        if size < self._min_bytes and read.accepted.accepts_identity:
            return None
        wanted = Wanted(_Job(run, coding), pieces, size)
        kept = self._find(wanted.job)
        if kept is None:
            return wanted
        self._kept.move_to_end(run.stream)
        self._in_coding(answer, wanted, kept.data)
        return None

    def ready(self, run: BodyRun, coding: Coding) -> bytes | None:
        """Return the compressed bytes of a range if they are cached, else None."""
        kept = self._find(_Job(run, coding))
        return kept.data if kept is not None else None

    def _find(self, job: _Job) -> _Kept | None:
        run, coding = job
        kept = self._kept.get(run.stream, {}).get((run.start, coding))
        return kept if kept is not None and kept.end == run.end else None

    # -- making

    async def _make(self, wanted: Wanted, level: int) -> bytes | None:
        """Compress the range, or wait for another request's job; return None if the body is to be sent plain."""
        job, pieces, size = wanted
        making = self._making.get(job)
        if making is None:
            if size <= INLINE_BYTES:
                return self._make_here(wanted, level)
            if self._queued_bytes + size > QUEUE_BYTES:
                return None
            making = self._begin(job, partial(_coded, CODERS[job.coding], level, pieces), size)
            if making is None:
                return None
        # A timeout must not cancel the job, because other requests share it.
        if not await wait_until(making, self._clock, PATIENCE_S):
            return None
        data: bytes | None = making.result()
        return data

    def _make_here(self, wanted: Wanted, level: int) -> bytes | None:
        job, pieces, size = wanted
        try:
            data = _coded(CODERS[job.coding], level, pieces)
        except Exception:
            _log.exception("coding failed (%s)", job.coding)
            return None
        self._keep(job, data, size)
        return data

    def _begin(self, job: _Job, work: Callable[[], bytes | None], size: int) -> asyncio.Future[Any] | None:
        loop = asyncio.get_running_loop()
        try:
            coded = loop.run_in_executor(self.executor, work)
        except RuntimeError:
            # No thread can be started, or the gateway is shutting down.
            return None
        making = self._making[job] = loop.create_future()
        self._queued_bytes += size
        coded.add_done_callback(partial(self._made, job, size, making))
        return making

    def _made(self, job: _Job, size: int, making: asyncio.Future[Any], work: asyncio.Future[bytes | None]) -> None:
        """Cache the thread's result and give it to the waiting requests."""
        self._queued_bytes -= size
        is_wanted = self._making.get(job) is making
        if is_wanted:
            del self._making[job]
        data: bytes | None = None
        if not work.cancelled():
            if (error := work.exception()) is not None:
                _log.error("coding failed (%s)", job.coding, exc_info=error)
            else:
                data = work.result()
                if is_wanted:
                    self._keep(job, data, size)
        making.set_result(data)

    # -- keeping

    def _keep(self, job: _Job, data: bytes | None, size: int) -> None:
        stream, start, end, _ = job.run
        if stream.ended is not None:
            return
        if data is not None:
            self._metrics.coded(job.coding, size, len(data))
        cost = CODED_COST + (len(data) if data is not None else 0)
        if self._drop(stream, (start, job.coding)):
            self.on_evict(stream)
        if cost > self.keep_bytes // CODED_BODY_SHARE:
            return
        while self.cost + cost > self.keep_bytes:
            self._evict()
        # Making room never drops bytes of this stream.
        if self._store.lend(cost, stream):
            self.cost += cost
            self._kept.setdefault(stream, {})[start, job.coding] = _Kept(
                end, data, cost, SharedBytes(len(data or b""), in_cache=True)
            )
            self._kept.move_to_end(stream)

    def _evict(self) -> None:
        """Evict the oldest compressed body of the least recently used stream."""
        stream, bodies = next(iter(self._kept.items()))
        self._drop(stream, next(iter(bodies)))
        self.on_evict(stream)

    def _drop(self, stream: Stream, slot: tuple[str, Coding]) -> bool:
        bodies = self._kept.get(stream, {})
        kept = bodies.pop(slot, None)
        if kept is None:
            return False
        kept.shared.in_cache = False
        self.cost -= kept.cost
        self._store.take_back(kept.cost)
        if not bodies:
            del self._kept[stream]
        return True

    def _in_coding(self, answer: Answer, wanted: Wanted, data: bytes | None) -> Answer:
        """Replace the answer's body with `data`, unless `data` is None."""
        coding, kept = wanted.job.coding, self._find(wanted.job)
        if kept is None:
            # The compressed bytes were not cached, or the body is plain only this time: do not remember the answer.
            answer.stream = None
        if data is not None and answer.parts is not None:
            answer.parts.close()
            answer.parts = Parts()
            is_kept = kept is not None and kept.data is data
            answer.parts.add_pieces((data,), 0, kept.shared if kept is not None and is_kept else SharedBytes(len(data)))
            answer.is_json = False
            answer.saved_bytes = wanted.size - len(data)
            answer.headers["Content-Encoding"] = coding.value
            answer.headers["ETag"] = of_coding(answer.headers["ETag"], coding)
        return answer

    def keep_coded(self, stream: Stream) -> None:
        """Mark the stream's compressed bytes as recently used.  Must be called by code that keeps its own reference to
        these bytes and sends them."""
        if stream in self._kept:
            self._kept.move_to_end(stream)

    def forget_stream(self, stream: Stream) -> None:
        """Drop the stream's compressed bytes.  Running jobs still answer the requests that wait for them."""
        if stream in self._kept:
            for slot in list(self._kept[stream]):
                self._drop(stream, slot)
        if self._making:
            for job in [job for job in self._making if job.run.stream is stream]:
                del self._making[job]

    def close(self) -> None:
        """Stop the thread and cancel queued jobs."""
        self.executor.shutdown(wait=False, cancel_futures=True)


def _coded(code: Callable[[bytes, int], bytes], level: int, pieces: Sequence[bytes]) -> bytes | None:
    """Return the pieces as one compressed body; None if compression saves too little."""
    plain = b"".join(pieces)
    data = code(plain, level)
    return data if len(data) <= len(plain) * _WORTH else None


def _vary(answer: Answer) -> None:
    """Add Accept-Encoding to the answer's Vary header."""
    varied = [name.strip() for line in answer.headers.getall("Vary", ()) for name in line.split(",") if name.strip()]
    if "*" not in varied and "accept-encoding" not in (name.lower() for name in varied):
        answer.headers["Vary"] = ", ".join([*varied, "Accept-Encoding"])
