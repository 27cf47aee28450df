"""A stream's identity: whether the stream that has a name is the one that was read under it before.

A stream that was deleted and created again may have the same offsets.  What tells the two apart is what they hold: the
digest of a few messages that were read, kept as evidence.  It is compared before new data is used, and once in each run
of a query for a stream without new data, so that a re-created stream is not passed over in silence.
"""

from __future__ import annotations

import hashlib
from contextlib import closing

from pyspark_durable_streams.batch_slice import EVIDENCE_UNITS
from pyspark_durable_streams.client import Client
from pyspark_durable_streams.framing import Unit
from pyspark_durable_streams.places import Evidence, Place, Position
from pyspark_durable_streams.walk import Gone, Walk


class Identities:
    """Evidence of streams, and the streams that were seen to match theirs; safe to use from several threads."""

    def __init__(self, client: Client, *, as_chunks: bool) -> None:
        self._client = client
        self._as_chunks = as_chunks
        self._known: set[str] = set()

    def trust(self, stream: str) -> None:
        """Take the stream to be the one that was read, because it was read in this run."""
        self._known.add(stream)

    def confirm(self, stream: str, position: Position) -> None:
        """Compare the stream with its evidence, once.  Raises Gone if it is another stream."""
        if stream in self._known or position.evidence is None:
            return
        self.compare(stream, position.unit, position.evidence)

    def compare(self, stream: str, unit: Unit, evidence: Evidence) -> None:
        """Compare the stream with evidence.  Raises Gone if it is another stream."""
        if not self.is_same(stream, unit, evidence):
            raise Gone(f"stream {stream} was deleted and re-created: the data after {evidence.token} has changed")
        self._known.add(stream)

    def reach(self, stream: str, place: Place, unit: Unit | None = None) -> Walk:
        """A walk that has asked for a place.  Raises Gone if the stream does not have it."""
        walk = Walk(self._client, stream, place, self._as_chunks, unit)
        with closing(walk.parts()) as parts:
            next(parts, None)
        return walk

    def of_beginning(self, stream: str) -> tuple[Unit | None, Evidence | None]:
        """The stream's unit and evidence from its beginning; Gone if it does not exist."""
        walk = Walk(self._client, stream, Place(), self._as_chunks)
        evidence = _evidence(walk)
        return walk.unit, evidence

    def is_same(self, stream: str, unit: Unit, evidence: Evidence) -> bool:
        """Whether the stream is the one that the evidence describes, as far as can be told."""
        walk = Walk(self._client, stream, Place(evidence.token), self._as_chunks, unit)
        try:
            return _evidence(walk, evidence.units) == evidence
        except Gone as gone:
            if gone.status == 410:
                return True  # retention removed the data; what follows may well be the same stream
            raise

    def still_begins(self, stream: str, unit: Unit, begin: Evidence) -> bool:
        """The same, and false for a stream that no longer has the place."""
        try:
            return self.is_same(stream, unit, begin)
        except Gone:
            return False


def _evidence(walk: Walk, units: int | None = None) -> Evidence | None:
    token = walk.place.token
    hasher = hashlib.blake2b(digest_size=8)
    done = 0
    with closing(walk.parts()) as parts:
        for part in parts:
            assert walk.unit is not None
            if units is None:
                units = min(EVIDENCE_UNITS[walk.unit], part.piece.count)
            piece = part.piece.before(units - done, walk.unit)
            hasher.update(piece.data)
            done += piece.count
            if done >= units:
                break
    return Evidence(token, done, hasher.hexdigest()) if done else None
