"""A stream from one token to another, walked by the task alone.

A batch that has as many streams as tasks needs no stream to be cut, so nobody has to count: the driver asks for each
stream's tail and reads nothing, and all bytes go straight to the tasks.  What a task reads ends at exactly its token,
however far the stream has grown meanwhile, so a task that is run again has the same messages, at the same `pos`; only
the token from which they are to be had again may then be another one, as the origin cuts its replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from pyspark_durable_streams.client import Client, ClientConfig
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.places import START, Place
from pyspark_durable_streams.reading import Fragment
from pyspark_durable_streams.walk import Gone, Part, Walk, count_at


@dataclass(frozen=True, slots=True)
class Reach:
    """All of a stream behind `token` and up to `end`."""

    stream: str
    token: str
    end: str

    @property
    def is_empty(self) -> bool:
        """Whether it ends where it begins."""
        return self.token != START and self.token >= self.end


class ReachTask(InputPartition):
    """What one Spark task walks."""

    def __init__(self, reaches: Sequence[Reach]) -> None:
        super().__init__(None)
        self.reaches = tuple(reaches)

    def __repr__(self) -> str:
        return f"ReachTask({len(self.reaches)} streams)"


def walked(
    task: ReachTask, config: ClientConfig, *, as_chunks: bool, fails_on_loss: bool, warn: Callable[[str], None]
) -> Iterator[Fragment]:
    """All messages of a task.  DataLost when a stream does not have what it had, unless that is to be passed over."""
    client = Client(config)
    try:
        for reach in task.reaches:
            try:
                yield from _fragments(reach, client, as_chunks)
            except DataLost as lost:
                if fails_on_loss:
                    raise DataLost(f"{lost}; failOnDataLoss=false reads what is there") from lost
                warn(f"{lost}; going on with what is there, as failOnDataLoss=false wants it")
    finally:
        client.close()


def _fragments(reach: Reach, client: Client, as_chunks: bool) -> Iterator[Fragment]:
    walk = Walk(client, reach.stream, Place(reach.token), as_chunks)
    held: Part | None = None
    try:
        for part in _parts(reach, walk):
            if held is not None:
                yield _fragment(reach, walk, held, is_last=False)
            held = part
    except Gone as gone:
        raise DataLost(f"{gone}; it had its end at {reach.end} when the batch was planned") from gone
    if held is not None:
        yield _fragment(reach, walk, held, is_last=True)


def _parts(reach: Reach, walk: Walk) -> Iterator[Part]:
    cut: int | None = None
    for part in walk.parts():
        if walk.token is not None and walk.token >= reach.end:
            return  # what has come since is another batch's
        if cut is None and walk.passes(reach.end):
            cut = count_at(walk.client, reach.stream, part.place, walk.unit, reach.end, walk.as_chunks)
        assert walk.unit is not None
        if cut is None or part.end.count < cut:
            yield part
            continue
        if part.place.count < cut:
            yield Part(part.place, part.piece.before(cut - part.place.count, walk.unit), part.end)
        return
    if cut is not None or walk.token is None or walk.token < reach.end:
        raise Gone(f"stream {reach.stream}: it ends at {walk.token}, before {reach.end}")


def _fragment(reach: Reach, walk: Walk, part: Part, *, is_last: bool) -> Fragment:
    assert walk.unit is not None
    return Fragment(reach.stream, walk.unit, part.place.token, part.place.count, part.piece, is_last)
