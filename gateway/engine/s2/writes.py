"""What writes through the gateway do to the records held of S2 streams.

A stream, or a whole basin, that was deleted or created is another one from then on, so what is held of it is dropped.
That is known for the writer's own partition only: under another token the same name may be another stream.
Appends are no such writes: what they add is found by asking for the tail.  But their acknowledgements may show that the
stream is another (`Acknowledgements`).

Some answers leave it open whether that has happened: a 404, to an append too, may be due to the credentials of its
asker, to readers with other credentials any write may be to another stream, and the name of what was created may be in
a body that was not kept.  Anyone can bring those about.  Then what is held is doubted: it is confirmed at the origin
before it is read again.  If it has live readers, it is confirmed within some seconds (`confirmations.py`), and they go
on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from multidict import CIMultiDict

from gateway.engine.relayed_request import RelayedRequest
from gateway.engine.s2.acks import Acknowledgements, Before
from gateway.engine.s2.request import (
    BASIN_HEADER,
    Unnamed,
    created_basin,
    created_stream,
    key_query,
    parse_basin,
    parse_path,
)
from gateway.protocol.mode import Mode
from gateway.protocol.stream_key import Group
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream

_GONE: Final = frozenset({404, 409, 410})
"""What a stream that is gone, or about to be (409), is answered with."""


class S2Writes:
    """Records the effects of writes.  Owns no state: the store does."""

    def __init__(self, store: TapeStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<S2Writes to {self._store!r}>"

    def appends(self, request: RelayedRequest) -> Acknowledgements | None:
        """What the answer to this request, which is about to be sent, may show; None if it is no append to a stream of
        which anything is held."""
        if request.mode is not Mode.APPEND:
            return None
        before = [
            Before(stream, stream.records.end, stream.key.partition == request.partition)
            for stream in self._appended_to(request)
            if stream.records is not None and stream.records.end
        ]
        return Acknowledgements(self._store, before) if before else None

    def written(self, request: RelayedRequest, status: int | None) -> None:
        """Record what the origin has done, by the status of its answer; without one it may have done it."""
        match request.mode:
            case Mode.APPEND:
                if status in (None, 201):
                    self._created(request)
                elif status in _GONE:
                    self._doubt(self._appended_to(request))
            case Mode.DELETE | Mode.CREATE:
                is_done = status is not None and (status == 201 if request.mode is Mode.CREATE else status < 300)
                if status is None:
                    self._apply(request, self._at_path(request), Stream.may_be_another)
                elif is_done:
                    self._drop(request, self._at_path(request))
                basin = parse_basin(request.group.path)
                if basin is not None and (is_done or status is None):
                    self._drop(request, self._of_basins(request.group.origin, {key_query(basin)}))
                if request.mode is Mode.DELETE and status in _GONE:
                    # Not for a basin: to look for its streams takes long, and anyone can ask for it in this way.
                    self._doubt(self._at_path(request))

    def _created(self, request: RelayedRequest) -> None:
        """A POST has, or may have, created what its body names."""
        group, headers = request.group, request.headers
        body, coding = request.body if isinstance(request.body, bytes) else None, headers.get("Content-Encoding")
        match created_basin(group.path, body, coding):
            case str(basin):
                self._drop(request, self._of_basins(group.origin, {key_query(basin)}))
            case Unnamed():
                self._doubt(self._of_basins(group.origin, None))
        match created_stream(group.path, body, coding):
            case str(path):
                self._drop(request, self._at_path(request._replace(group=Group(group.origin, path))))
            case Unnamed():
                self._doubt(self._of_basins(group.origin, _queries(headers)))

    def _at_path(self, request: RelayedRequest) -> Iterator[Stream]:
        """What is held of the stream that a request names by its path and by its basin.

        It is the same stream for all credentials, or another: only the origin knows.
        """
        queries = _queries(request.headers)
        for stream in self._store.group(request.group):
            if stream.records is not None and (queries is None or stream.key.query in queries):
                yield stream

    def _appended_to(self, request: RelayedRequest) -> Iterator[Stream]:
        """What is held of the stream that a POST appends to; nothing if it is no append."""
        path = parse_path(request.group.path)
        if path is None or not path.is_records:
            return iter(())
        return self._at_path(request._replace(group=Group(request.group.origin, path.stream)))

    def _of_basins(self, origin: str, queries: set[str] | None) -> Iterator[Stream]:
        """What is held of the streams of these basins; None is for all."""
        for stream in tuple(self._store):
            key = stream.key
            if stream.records is not None and key.group.origin == origin and (queries is None or key.query in queries):
                yield stream

    def _drop(self, request: RelayedRequest, streams: Iterable[Stream]) -> None:
        self._apply(request, streams, lambda stream: self._store.drop(stream, End.DELETED))

    def _apply(self, request: RelayedRequest, streams: Iterable[Stream], change: Callable[[Stream], object]) -> None:
        """Change the writer's own streams, and doubt the others."""
        for stream in streams:
            if stream.key.partition == request.partition:
                change(stream)
            else:
                self._store.doubt_records(stream)

    def _doubt(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            self._store.doubt_records(stream)


def _queries(headers: CIMultiDict[str]) -> set[str] | None:
    """In the keys of the streams that a request may mean, the query that tells the basin; None is for any."""
    basins = headers.getall(BASIN_HEADER, ())
    # A basin that is not in the header is told by the host, which is one for all streams of the origin.
    return {"", key_query(basins[0])} if len(basins) == 1 else None
