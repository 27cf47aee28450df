"""Sends one batch's messages to their streams: each stream in order, several streams in parallel.

The sender receives a table of messages and the identity of the write (a `Batch`).  It works the same in a task, for the
streams that belong to that task, and in the driver, for all streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pyspark_durable_streams.client import Client, origin_error
from pyspark_durable_streams.errors import BadReply, BadRow, NotRepeatable
from pyspark_durable_streams.posts import Framing, bodies
from pyspark_durable_streams.producer import Producer, Sent, path_of
from pyspark_durable_streams.rows import streams_of
from pyspark_durable_streams.write_options import WriteOptions

_SIDE_BY_SIDE: Final = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """The identity of the messages: the write (a query, or one `save`), and the number of its batch."""

    write: str
    epoch: int


class Sender:
    """Sends for one task or for one commit; closes its connections at the end of the `with` block."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._client = Client(options.client)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, messages: pa.Table, batch: Batch, *, may_come_again: bool) -> dict[str, Sent]:
        """Return, by stream, what was sent, once all of it is acknowledged.  Raises the first failure.

        `may_come_again` means that another attempt may send the same batch with its rows in another order, unless
        columns order them.
        """
        must_fit = may_come_again and not self._options.order
        with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="durable-streams") as lanes:
            sending = {
                stream: lanes.submit(self._send, stream, values, batch, must_fit)
                for stream, values in streams_of(messages)
            }
            done, _ = wait(sending.values(), return_when=FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                lanes.shutdown(wait=False, cancel_futures=True)
            failures = [error for future in done if (error := future.exception()) is not None]
        if failures:
            raise failures[0]
        return {stream: future.result() for stream, future in sending.items()}

    def close(self, posts: Mapping[str, int], batch: Batch) -> None:
        """Close each stream after its number of POSTs."""
        for stream, count in posts.items():
            self._producer(stream, batch, self._options.content_type or "").close(count)

    def _send(self, stream: str, values: pa.LargeBinaryArray, batch: Batch, must_fit: bool) -> Sent:
        options = self._options
        content_type = options.content_type or self._content_type(stream)
        framing = Framing.of(content_type, options.separator)
        try:
            made = bodies(values, framing, options.max_batch_bytes)
        except BadRow as error:
            raise BadRow(f"{stream}: {error}") from None
        if must_fit and len(made) > 1:
            raise NotRepeatable(
                f"{stream}: {sum(map(len, made))} bytes of one batch do not fit one POST, and a repetition may have "
                "another order: name the columns that order them (orderBy), or raise maxBatchBytes"
            )
        producer = self._producer(stream, batch, content_type)
        return producer.send(made, may_be_closed=options.close and options.write_id is not None)

    def _producer(self, stream: str, batch: Batch, content_type: str) -> Producer:
        is_created = self._options.create is not None
        return Producer(self._client, stream, batch.write, batch.epoch, content_type, creates=is_created)

    def _content_type(self, stream: str) -> str:
        reply = self._client.request("HEAD", path_of(stream))
        if reply.status != 200:
            advice = " (the option create=<content type> creates a missing stream)" if reply.status == 404 else ""
            raise type(error := origin_error(reply, stream))(f"{error}{advice}", reply.status)
        try:
            return reply.headers["Content-Type"]
        except KeyError:
            raise BadReply(f"{stream}: the origin gives no content type; set the option contentType") from None
