"""Readers and writers of Durable Streams, for locust: `locust -f loadtest/locustfile.py --host http://…`.

Four kinds of users share a few JSON streams that are made when the test starts.  Their weights are locust's own
(`--class-picker`, `--config-users`, or names of classes on the command line).  Writers number their messages, and every
reader checks that it gets them all, once, in order, and none too late (`loadtest.reading` says what that means).  What
is wrong shows as a failure of the request type `verify`, and makes locust exit with 1.

The time from a writer's send to a live reader's receipt of a message is shown as request type `deliver`.  Both ends are
in this process, so the time includes delays of this process.  For more load than one core can make, run with
`--processes`; each process has streams of its own.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from gevent.lock import Semaphore
from locust import FastHttpUser, User, between, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner

from loadtest.reading import NOW, START, EventReader, Fault, Kind, Message, Reader

_TIMEOUT_S = 40.0
"""Above the longest long-poll."""

_MOST_MARKS = 200
_MOST_PAGES = 1_000


@dataclass
class Stream:
    """One stream under test, shared by its writers and readers."""

    path: str
    producer: str = field(default_factory=lambda: uuid.uuid4().hex)
    turn: Semaphore = field(default_factory=Semaphore)
    """Held during an append, so that numbers go out in order."""
    posts: int = 0
    written: int = 0
    acknowledged: int = -1
    marks: list[tuple[str, int]] = field(default_factory=list)
    """Offsets from the gateway, with the last message before each, for catch-up reads to start at."""

    def mark(self, reader: Reader) -> None:
        if reader.confirmed is not None and reader.confirmed >= 0:
            if len(self.marks) >= _MOST_MARKS:
                self.marks.pop(random.randrange(_MOST_MARKS))
            self.marks.append((reader.offset, reader.confirmed))


STREAMS: list[Stream] = []


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser) -> None:
    """Add the run's own options to locust's."""
    group = parser.add_argument_group("Durable Streams")
    group.add_argument("--streams", type=int, default=8, help="Streams that all users share.")
    group.add_argument("--message-bytes", type=int, default=200, help="Size of a message.")
    group.add_argument("--sse-stay", type=float, default=8.0, help="Longest stay of a subscriber before it resumes, s.")


@events.test_start.add_listener
def create_streams(environment: Environment, **_: Any) -> None:
    """Make this process's streams."""
    if isinstance(environment.runner, MasterRunner):
        return
    host = urlsplit(environment.host or "")
    run = uuid.uuid4().hex[:8]
    STREAMS[:] = [
        Stream(f"{host.path.rstrip('/')}/loadtest/{run}/{number}") for number in range(_options(environment).streams)
    ]
    connection = HTTPConnection(host.hostname or "", host.port or 80, timeout=_TIMEOUT_S)
    for stream in STREAMS:
        connection.request("PUT", stream.path, headers={"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        if reply.status != 201:
            raise SystemExit(f"PUT {stream.path}: {reply.status}")
    connection.close()


def _options(environment: Environment) -> Any:
    return environment.parsed_options


def report(environment: Environment, name: str, faults: Iterable[Fault]) -> None:
    """Faults, as failures in locust's report."""
    for fault in faults:
        environment.events.request.fire(
            request_type="verify", name=f"{name}: {fault.kind}", response_time=0.0, response_length=0, exception=fault
        )


def delivered(environment: Environment, name: str, messages: Iterable[Message], since: float) -> None:
    """Messages sent after `since`, from which on the reader was waiting for them."""
    now = time.time()
    for message in messages:
        if message.sent_at >= since:
            environment.events.request.fire(
                request_type="deliver",
                name=name,
                response_time=(now - message.sent_at) * 1_000,
                response_length=1,
                exception=None,
            )


class _HttpReader(FastHttpUser):
    abstract = True
    network_timeout = _TIMEOUT_S

    def read(self, stream: Stream, reader: Reader, live: str | None, name: str, since: float | None = None) -> bool:
        """One request; False when it failed.  `since` is from when on the reader waits for messages."""
        acknowledged = stream.acknowledged
        self.url = f"{stream.path}?{reader.query(live)}"
        with self.client.get(self.url, name=name, catch_response=True) as reply:
            if reply.status_code not in (200, 204):
                reply.failure(f"{name}: {reply.status_code}")
                return False
            self.is_up_to_date = reply.headers.get("Stream-Up-To-Date") == "true"
            self.etag = reply.headers.get("ETag")
            messages, faults = reader.reply(reply.content or b"", reply.headers, acknowledged)
            reply.success()
        report(self.environment, name, faults)
        if since is not None:
            delivered(self.environment, name, messages, since)
        stream.mark(reader)
        return not faults

    def walk(self, stream: Stream, reader: Reader) -> None:
        """Catch up, page by page."""
        for _ in range(_MOST_PAGES):
            if not self.read(stream, reader, None, "catch-up") or self.is_up_to_date:
                return
        fault = Fault(Kind.STALE, f"not up to date after {_MOST_PAGES} pages")
        report(self.environment, "catch-up", [fault])


class Writer(_HttpReader):
    """Appends one to three messages at a time, as an idempotent producer; it repeats unacknowledged appends.

    Every other append is followed by a read of the same messages, as soon as possible after the acknowledgement.
    """

    weight = 2
    wait_time = between(0.05, 0.3)

    @task
    def append_and_read(self) -> None:
        stream = random.choice(STREAMS)
        self.append(stream)
        if stream.marks:
            self.read(stream, Reader(*stream.marks[-1]), None, "read-back")

    @task
    def append_only(self) -> None:
        self.append(random.choice(STREAMS))

    def append(self, stream: Stream) -> None:
        """One POST, repeated until it is acknowledged."""
        with stream.turn:
            count = random.choice((1, 1, 1, 2, 3))
            size = _options(self.environment).message_bytes
            batch = [Message(stream.written + index, time.time()).encode(size) for index in range(count)]
            headers = {
                "Content-Type": "application/json",
                "Producer-Id": stream.producer,
                "Producer-Epoch": "0",
                "Producer-Seq": str(stream.posts),
            }
            for _ in range(5):
                with self.client.post(
                    stream.path,
                    data=b"[" + b",".join(batch) + b"]",
                    headers=headers,
                    name="append",
                    catch_response=True,
                ) as reply:
                    if reply.status_code in (200, 204):
                        stream.posts += 1
                        stream.written += count
                        stream.acknowledged = stream.written - 1
                        return
                    reply.failure(f"append: {reply.status_code}")
        raise StopUser


class CatchUpReader(_HttpReader):
    """Reads from the start or from the middle to the tail, and revalidates the last page."""

    weight = 3
    wait_time = between(0.05, 0.5)

    @task(4)
    def from_the_start(self) -> None:
        self.walk(random.choice(STREAMS), Reader(START))

    @task(4)
    def from_the_middle(self) -> None:
        stream = random.choice(STREAMS)
        self.walk(stream, Reader(*random.choice(stream.marks)) if stream.marks else Reader(START))

    @task(2)
    def again(self) -> None:
        """Revalidate the last page: 304 is right only where nothing has been acknowledged that was not in it."""
        stream = random.choice(STREAMS)
        reader = Reader(START)
        self.walk(stream, reader)
        if self.etag is None or reader.seen is None:
            return
        acknowledged = stream.acknowledged
        with self.client.get(
            self.url, headers={"If-None-Match": self.etag}, name="revalidate", catch_response=True
        ) as reply:
            if reply.status_code not in (200, 304):
                reply.failure(f"revalidate: {reply.status_code}")
                return
            reply.success()
        if reply.status_code == 304 and reader.seen < acknowledged:
            report(self.environment, "revalidate", [Fault(Kind.STALE, f"304 at {reader.seen} of {acknowledged}")])


class LongPollTailer(_HttpReader):
    """Follows one stream by long-poll, from its start or its tail."""

    weight = 3
    wait_time = between(0.0, 0.01)

    def on_start(self) -> None:
        self.stream = random.choice(STREAMS)
        self.reader = Reader(random.choice((START, NOW)))
        if self.reader.offset == START:
            self.walk(self.stream, self.reader)
        self.since = time.time()

    @task
    def poll(self) -> None:
        if not self.read(self.stream, self.reader, "long-poll", "long-poll", self.since):
            self.since = time.time()


class SseSubscriber(User):
    """Subscribes to one stream by SSE, leaves after a while in the middle of whatever comes, and resumes."""

    weight = 4
    wait_time = between(0.0, 0.5)

    def on_start(self) -> None:
        self.stream = random.choice(STREAMS)
        self.reader = Reader(random.choice((START, NOW)))

    @task
    def subscribe(self) -> None:
        """One connection; what it was sent and not confirmed before it ended comes again."""
        stream, reader = self.stream, self.reader
        events_read = EventReader(reader, stream.acknowledged)
        leaves_at = time.monotonic() + random.uniform(0.5, 1.0) * _options(self.environment).sse_stay
        host = urlsplit(self.host or "")
        connection = HTTPConnection(host.hostname or "", host.port or 80, timeout=_TIMEOUT_S)
        began, status, size = time.perf_counter(), 0, 0
        error: Exception | None = None
        try:
            connection.request("GET", f"{stream.path}?{reader.query('sse')}", headers={"Accept": "text/event-stream"})
            reply = connection.getresponse()
            status = reply.status
            first_byte_s = time.perf_counter() - began
            since = time.time()
            while status == 200 and time.monotonic() < leaves_at:
                chunk = reply.read1(1 << 16)
                if not chunk:
                    break
                size += len(chunk)
                messages, faults = events_read.feed(chunk)
                report(self.environment, "sse", faults)
                delivered(self.environment, "sse", messages, since)
            if status != 200:
                error = HTTPException(f"sse: {status}")
        except (OSError, HTTPException) as caught:
            error, first_byte_s = caught, time.perf_counter() - began
        finally:
            connection.close()
        self.environment.events.request.fire(
            request_type="GET", name="sse", response_time=first_byte_s * 1_000, response_length=size, exception=error
        )
        reader.rewind()
        stream.mark(reader)
