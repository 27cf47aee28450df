"""The writes that other workers relay, and their effects on the streams in this worker's memory.

Each worker records the beginning and the end of the writes that it relays (`gateway.workers.write_log`).  Before this
worker uses its memory of a path, it reads the other workers' new records for the path.  It applies their writes by the
rules for its own writes (`gateway.engine.writes`): each write is pending from its first record to its second record.

A record is lost if it was overwritten, did not fit, or was not written because its worker died.  Any write may then
have happened to the path, so the bytes in memory are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Protocol

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.engine.negative_cache import NegativeCache
from gateway.engine.relayed_request import RelayedRequest, SentRequest
from gateway.engine.route import Route
from gateway.engine.s2.request import parse_basin, parse_path
from gateway.limits.accounts import Account
from gateway.limits.rate_limits import Rate
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_CLOSED, STREAM_NEXT_OFFSET, stated_position
from gateway.protocol.sharing import Group, StreamKey
from gateway.tape.store import TapeStore
from gateway.upstream.reply import Reply
from gateway.workers.removals import Removals
from gateway.workers.worker_owners import Owners
from gateway.workers.write_log import MOST_TEXT, Record, WriteLog

_BEGUN, _ANSWERED, _UNANSWERED, _WITHOUT_EFFECT = b"B", b"A", b"U", b"N"
_CONTROL, _APPENDED, _ENDED = b"C", b"S", b"E"
"""The kinds of records, each by its event, in the sequence of the names above:

    _BEGUN            a write was sent
    _ANSWERED         a write was answered
    _UNANSWERED       a write got no answer
    _WITHOUT_EFFECT   a write has certainly changed nothing
    _CONTROL          a request of S2's control plane may have changed any stream of its origin
    _APPENDED         the origin has given a number to an append to an S2 stream
    _ENDED            a reply to a request other than a write has shown that a stream has ended
"""
_VARIES, _TO_ANOTHER = "v", "a"
"""Marks in the record of an answer: the answer varies; the write has shown that the stream was re-created."""
_MOST_KNOWN: Final = 1 << 16
_OF_KNOWN, _OF_UNKNOWN = Rate(16, 64), Rate(16, 64)
"""The limits on the rates of two groups of records: uncertain ends of known streams, and all ends of unknown
streams."""
_LEAST_LONG: Final = MOST_TEXT // 8
"""A record has a digest of a stream's key in place of the key only if the key is longer than this number of characters.
A character has at most four bytes."""
_WORDS: Final = ((STREAM_NEXT_OFFSET, "Stream-Next-Offset"), (STREAM_CLOSED, "Stream-Closed"))


class WriteReply(Protocol):
    """The parts of a reply from which the effects of a write follow."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> CIMultiDict[str] | CIMultiDictProxy[str]: ...


class Applying(Protocol):
    """Applies writes: `gateway.engine.writes.Writes`."""

    def apply_started(self, write: SentRequest) -> None: ...

    def apply_answered(self, write: SentRequest, reply: WriteReply) -> None: ...

    def apply_unanswered(self, write: SentRequest) -> None: ...

    def apply_without_effect(self, write: SentRequest) -> None: ...

    def apply_anything(self, group: Group) -> None: ...

    def apply_control(self, origin: str) -> None: ...

    def apply_appended(self, group: Group, queries: Collection[str] | None, start: int) -> None: ...

    def apply_ended(self, key: StreamKey, *, is_certain: bool) -> None: ...


class ToldReply:
    """The parts of a reply's head that are in the record of another worker."""

    __slots__ = ("headers", "status")

    def __init__(self, status: int, headers: CIMultiDict[str]) -> None:
        self.status = status
        self.headers = headers


class OthersWrites:
    """Records this worker's writes for the other workers, and applies the writes of the others."""

    def __init__(
        self,
        log: WriteLog,
        owners: Owners,
        store: TapeStore,
        negative_cache: NegativeCache,
        generation: int,
        removals: Removals,
    ) -> None:
        self._log = log
        # They are counted without a store on disk too: the next version may have one.
        self._removals = removals
        self._store = store
        self._negative_cache = negative_cache
        self._generation = generation
        self._raw = log.raw
        self._count = 0
        self._own: dict[SentRequest, bytes] = {}
        """This worker's writes under way, each with its name.  Both records of a write have this name."""
        self._others: dict[tuple[int, bytes], SentRequest] = {}
        """The writes of other workers under way, by the worker's place in the write log and the write's name."""
        self._seen: dict[int, bytes] = {}
        """The content of rows of the write log at this worker's latest look, by the number of the row."""
        self._rows: dict[int, slice] = {}
        self._ends = Account("ends of streams")
        self._removed: set[int] = set()
        """The rows with counted removals whose record is still to be made.  A write through another member of a fleet
        makes no record here, so its row stays until the next record of this worker."""
        self._is_applying = False
        """Whether records of other workers are being applied."""
        self._kept_in_row: Callable[[int], Collection[Group]] = lambda row: ()
        """Returns the paths of a row that may be on disk."""
        self.routes: Callable[[str], Route | None] = lambda name: None
        """Returns the route with this name."""
        self.applying: Applying
        self.index_of: Final = lru_cache(_MOST_KNOWN)(lambda group: owners.cell_of(*group))
        """Returns the number of a path's row."""
        store.paths.number_paths(self.index_of)

    def __repr__(self) -> str:
        return f"<OthersWrites {len(self._own)} own, {len(self._others)} of others, {len(self._seen)} rows seen>"

    def keep_on_disk(self, kept_in_row: Callable[[int], Collection[Group]]) -> None:
        """Apply lost records also to paths on disk.  `kept_in_row` returns the paths of a row that are on disk."""
        self._kept_in_row = kept_in_row

    def look(self, group: Group) -> None:
        """Apply the other workers' records for the path.  Must be called before this worker uses its memory of the
        path."""
        self.look_at_row(self.index_of(group))

    def look_at_row(self, index: int) -> None:
        """Apply the other workers' records for all paths of a row."""
        if self._raw[self._row(index)] != self._seen.get(index):
            self._read(index)

    def _row(self, index: int) -> slice:
        row = self._rows.get(index)
        if row is None:
            row = self._rows[index] = self._log.row(index)
        return row

    def look_at_s2(self, group: Group) -> None:
        """Like `look`, for the path of an S2 stream.  Requests of the control plane concern all streams of an
        origin."""
        self.look(Group(group.origin, ""))
        self.look(group)

    # -- recording this worker's writes

    def begun(self, write: SentRequest) -> None:
        """Record that a write is about to be sent."""
        request = write.request
        self._count += 1
        name = self._own[write] = b"%d.%d" % (self._generation, self._count)
        key = request.tape_key
        words = (request.route.name, *request.group, request.mode.value, request.query)
        own = (key.query, key.partition.readers) if key is not None else ()
        index = self.index_of(request.group)
        self._has_made(index, self._log.begin(index, _text(_BEGUN, name, *words, *own)))

    def answered(self, write: SentRequest, reply: Reply) -> None:
        """Record the head of a write's answer, before a byte of the answer is sent."""
        headers = reply.headers
        varies = write.request.route.sharing.varies(headers)
        # A failed write may have been executed, unless the client has aborted its request.
        if reply.status >= 500:
            self._end(write, _text(_WITHOUT_EFFECT if write.is_cut_short else _UNANSWERED, self._own[write]))
            return
        said = [headers.getall(name, ()) for name, _ in _WORDS]
        # If the reply repeats a header, record all values of this header in one word.  Such a word is not a valid
        # offset, so no worker uses it as an offset.
        words = ("\n".join(lines) if lines else "" for lines in said)
        tail = stated_position(headers)
        is_to_another = tail is not None and write.shows_another_stream(tail, reply.status)
        facts = (_VARIES if varies else "") + (_TO_ANOTHER if is_to_another else "")
        self._end(write, _text(_ANSWERED, self._own[write], str(reply.status), facts, *words))

    def unanswered(self, write: SentRequest, *, may_be_done: bool) -> None:
        """Record that a write has got no answer.  `may_be_done` states whether the origin may have executed it."""
        self._end(write, _text(_UNANSWERED if may_be_done else _WITHOUT_EFFECT, self._own[write]))

    def appended(self, group: Group, queries: Collection[str] | None, start: int) -> None:
        """Record the number that the origin has given to the first record of an append to an S2 stream.

        `queries` are the possible queries in the keys of the basin's streams (a basin is a namespace of streams in S2).
        None means any query.
        """
        self._count += 1
        name = b"%d.%d" % (self._generation, self._count)
        self._log.note(self.index_of(group), _text(_APPENDED, name, *group, str(start), *(queries or ())))

    def s2_ended(self, key: StreamKey) -> None:
        """Record that an S2 stream has ended at the origin.  From now on, any record number may belong to another
        stream of this name."""
        self.appended(key.group, {key.query}, 0)

    def ended(self, key: StreamKey, *, was_known: bool, is_certain: bool) -> None:
        """Record that the origin has refused a read of a stream with 404 or 410, or has shown another stream of the
        same name.

        `was_known` states whether this worker had the stream in memory.  `is_certain` states that the stream has ended.
        If it is False, the origin may only hide the stream from one reader.

        Other workers may have bytes of a stream that this worker has forgotten.  An end is therefore recorded even if
        the stream was not in memory.  But clients can request any name, and the log has room for few records.  For this
        reason, only certain ends of known streams are always recorded.  All other ends are recorded at a limited rate.
        If an end is not recorded, other workers send the bytes in their memory for at most `trust_s`.
        """
        if not (was_known and is_certain):
            rate = _OF_KNOWN if was_known else _OF_UNKNOWN
            if not rate.took_one(self._ends, self._log.now()):
                return
        index = self.index_of(key.group)
        if is_certain:
            self._begin_removal(index)
        self._count += 1
        name = b"%d.%d" % (self._generation, self._count)
        certain = "1" if is_certain else ""
        text = _text(_ENDED, name, certain, *_words(key))
        if len(text) > MOST_TEXT:
            text = _text(_ENDED, name, certain, _digest(key))
        self._log.note(index, text)
        self._end_removals()

    def withdrawn(self, group: Group) -> None:
        """Count a removal, because a write of this worker may have removed the streams of a path.  The write's second
        record, or a record of the stream's end, must follow.  While records of other workers are applied, this does
        nothing: those workers have counted the removal."""
        if not self._is_applying:
            self._begin_removal(self.index_of(group))

    def _begin_removal(self, row: int) -> None:
        if row not in self._removed:
            self._removed.add(row)
            self._removals.begin(row)

    def _end_removals(self) -> None:
        while self._removed:
            self._removals.end(self._removed.pop())

    def _end(self, write: SentRequest, text: bytes) -> None:
        request = write.request
        name = self._own.pop(write)
        index = self.index_of(request.group)
        self._has_made(index, self._log.end(index, text))
        if request.route.is_s2 and not text.startswith(_WITHOUT_EFFECT) and _is_control(request):
            origin = request.group.origin
            self._log.note(self.index_of(Group(origin, "")), _text(_CONTROL, name, origin))
        self._end_removals()

    def _has_made(self, index: int, cell: bytes) -> None:
        """Treat this worker's own new record as seen, so that the next look at the row finds nothing new."""
        if (seen := self._seen.get(index)) is not None:
            self._seen[index] = self._log.with_own(seen, cell)

    # -- applying the writes of other workers

    def _read(self, index: int) -> None:
        seen = self._seen.get(index)
        if seen is None and (row := self._raw[self._rows[index]]) == self._log.blank:
            self._seen[index] = row
            return
        was_applying, self._is_applying = self._is_applying, True
        try:
            self._apply_news(index, seen)
        finally:
            self._is_applying = was_applying

    def _apply_news(self, index: int, seen: bytes | None) -> None:
        news = self._log.read(index, seen if seen is not None else self._log.blank)
        self._seen[index] = news.row
        if seen is None and not self._log.under_way_elsewhere(news.row):
            # No stream of these paths is in memory yet, and no write to them is under way.
            return
        lost = set(news.lost) if seen is not None else set()
        for record in news.records:
            if not self._apply(index, record, is_first=seen is None):
                lost.add(record.place)
        if lost:
            self._lose(index, lost)

    def _apply(self, index: int, record: Record, *, is_first: bool) -> bool:
        """Apply a record of this row.  Return False if the effects of the write do not follow from the record.

        `is_first` states whether the row is read for the first time.  Only writes that are still under way then matter.
        """
        if not record.text:
            return False
        kind, name, *words = record.text.split(b"\0")
        key = (record.place, name)
        if kind == _CONTROL:
            self.applying.apply_control(words[0].decode())
            return True
        if kind == _APPENDED:
            origin, path, start, *queries = (word.decode("utf-8", "surrogateescape") for word in words)
            self.applying.apply_appended(Group(origin, path), queries or None, int(start))
            return True
        if kind == _ENDED:
            self._apply_ended(index, bool(words[0]), words[1:])
            return True
        if kind == _BEGUN:
            write = self._written(record, words)
            if write is None:
                return False
            self._others[key] = write
            self.applying.apply_started(write)
            return True
        write = self._others.pop(key, None)
        if write is None:
            # The first record of the write was lost, or is older than this worker's first look at the row.
            return is_first
        if kind == _ANSWERED:
            write.is_to_another = _TO_ANOTHER in words[1].decode()
            self.applying.apply_answered(write, _told(words))
        elif kind == _UNANSWERED:
            self.applying.apply_unanswered(write)
        else:
            self.applying.apply_without_effect(write)
        return True

    def _apply_ended(self, index: int, is_certain: bool, words: list[bytes]) -> None:
        """Apply the end of the stream that the words of a record name."""
        if len(words) > 1:
            origin, path, query, name, readers = (word.decode("utf-8", "surrogateescape") for word in words)
            group, route = Group(origin, path), self.routes(name)
            if route is not None:
                key = StreamKey(group, query, route.public._replace(readers=readers))
                self.applying.apply_ended(key, is_certain=is_certain)
            elif is_certain:
                # During an upgrade or a reload, the workers may have different routes to one stream.
                self.applying.apply_anything(group)
            return
        digest = words[0].decode()
        keys = [stream.key for group in self._store.paths.in_row(index) for stream in self._store.group(group)]
        for key in keys:
            if sum(map(len, _words(key))) > _LEAST_LONG and _digest(key) == digest:
                self.applying.apply_ended(key, is_certain=is_certain)
        if is_certain:
            # The digest may be that of a stream that is on disk alone.
            for group in self._kept_in_row(index):
                self._store.withdraw_kept(group)

    def _written(self, record: Record, words: list[bytes]) -> SentRequest | None:
        """Return another worker's write in the form of this worker's own writes; None if its route is not known."""
        name, origin, path, mode, query, *own = (word.decode("utf-8", "surrogateescape") for word in words)
        route = self.routes(name)
        if route is None:
            return None
        group = Group(origin, path)
        stream = None
        if own:
            stream = self._store.find(StreamKey(group, own[0], route.public._replace(readers=own[1])))
        request = RelayedRequest(route, group, None, Mode(mode), "", path, query, "", CIMultiDict(), "")
        write = SentRequest(request, stream, record.at)
        seen = stream.sighting if stream is not None else None
        if seen is not None and seen.seen_at < record.at:
            # Do not use a tail that this worker has learnt after the write was sent, because this tail may already
            # include the write.
            write.tail = seen.at
        return write

    def _lose(self, index: int, places: set[int]) -> None:
        """Assume that every kind of write has happened to the paths of this row, because records of the workers in
        these places were lost."""
        # Find these paths by the store's index.  Clients can cause lost records with long paths, and a search of the
        # whole store for each lost record would take too long.
        groups = self._store.paths.in_row(index)
        groups.update(self._kept_in_row(index))
        groups.update(group for group in self._negative_cache.groups if self.index_of(group) == index)
        for key, write in list(self._others.items()):
            if key[0] in places and self.index_of(write.request.group) == index:
                del self._others[key]
                self.applying.apply_unanswered(write)
                groups.add(write.request.group)
        for group in groups:
            self.applying.apply_anything(group)


def _is_control(request: RelayedRequest) -> bool:
    """Return whether a write to an S2 origin may concern streams of other paths."""
    path = request.group.path
    return parse_basin(path) is not None or (request.mode is Mode.APPEND and parse_path(path) is None)


def _text(kind: bytes, name: bytes, *words: str) -> bytes:
    return (
        b"\0".join((kind, name, "\0".join(words).encode("utf-8", "surrogateescape"))) if words else kind + b"\0" + name
    )


def _words(key: StreamKey) -> tuple[str, ...]:
    return (*key.group, key.query, key.partition.route, key.partition.readers)


def _digest(key: StreamKey) -> str:
    """Return a digest of the key, which has a bounded length.  Python's `hash` differs between workers."""
    return blake2b("\0".join(_words(key)).encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


def _told(words: list[bytes]) -> ToldReply:
    status, facts, *said = (word.decode("utf-8", "surrogateescape") for word in words)
    headers: CIMultiDict[str] = CIMultiDict()
    for (_, name), value in zip(_WORDS, said, strict=True):
        for line in value.split("\n") if value else ():
            headers.add(name, line)
    if _VARIES in facts:
        headers["Vary"] = "*"
    return ToldReply(int(status), headers)
