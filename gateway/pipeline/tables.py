"""Every table that the pipeline writes: its name, its columns with their meanings, and its folder.

A lake is one folder, or one prefix of an object store:

    <lake>/bronze/            lines, unchanged: events (kind `lines`), and rejected ones with the reason (`rejects`)
    <lake>/silver/requests/   typed, each line once
    <lake>/silver/sessions/   what one reader did on one stream, over its reconnects
    <lake>/gold/<table>/      figures
    <lake>/curve/<table>/     miss-ratio curves
    <lake>/spool/             new lines of files on their way to bronze, while an ingest runs

All tables are Delta tables.  Bronze, silver and gold are partitioned by `day` (UTC, of the event's time), so that what
has to be computed again is a few files.  In gold `minute` and `hour` are the beginning of the window, ratios are absent
(NULL) where there was nothing to divide by, and `route` is `-` where none matched.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode

READS: Final = (Mode.CATCHUP.value, Mode.LONGPOLL.value, Mode.SSE.value)
"""The modes of reads."""
LIVE: Final = READS[1:]
ANSWERED_BY: Final = {
    "tape": (Outcome.HIT, Outcome.STALE_IF_ERROR),
    "collapse": (Outcome.COLLAPSED,),
    "follow": (Outcome.FOLLOWED,),
    "join": (Outcome.JOINED, Outcome.REVALIDATED),
    "origin": (Outcome.MISS, Outcome.PASS),
    "unanswered": (Outcome.REFUSED, Outcome.FAILED, Outcome.ABORTED),
}
"""How a read was answered, by its outcome."""
LATE_DAYS: Final = 3
"""While a source is followed, a day is complete once there are events this many days after it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its Spark SQL type, and what it says with its unit."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its folder in the lake, its columns and its key columns.  With a `kind`, it is the part of a table whose
    rows are of that kind."""

    place: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    kind: str | None = None
    partition_by: tuple[str, ...] = ("day",)
    """The columns that its files are separated by."""

    @property
    def name(self) -> str:
        """Its kind, or the last part of its place."""
        return self.kind or self.place.rpartition("/")[2]

    @property
    def title(self) -> str:
        """Its place, and its kind."""
        return self.place if self.kind is None else f"{self.place}, kind {self.kind}"

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.columns]

    @property
    def ddl(self) -> str:
        """The columns as Spark's schema text."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def with_columns(self, names: Collection[str]) -> Table:
        """The table with only these of its columns, in its own order."""
        return replace(self, columns=tuple(column for column in self.columns if column.name in names))


def _gold(name: str, key: tuple[Column, ...], *values: Column) -> Table:
    """A gold table: its day, its key columns, and its figures."""
    return Table(f"gold/{name}", (_DAY, *key, *values), tuple(column.name for column in key))


def _percentiles(of: str) -> list[Column]:
    return [Column(f"{of}_p{rank}_s", "double", "Seconds.") for rank in (50, 90, 99)]


DURABLE_STREAMS: Final = "durable-streams"
_DAY: Final = Column("day", "date", "UTC day; the partition.")
_MINUTE: Final = Column("minute", "timestamp", "Beginning of the minute in which the line was written.")
_HOUR: Final = Column("hour", "timestamp", "Beginning of the hour.")
_ROUTE: Final = Column("route", "string", "Configured route, `-` where none matched.")
_PROTOCOL: Final = Column("protocol", "string", "What clients speak: `durable-streams` or `s2`.")
_MODE: Final = Column("mode", "string", "`gateway.protocol.mode.Mode`.")
_OUTCOME: Final = Column("outcome", "string", "`gateway.protocol.cache_status.Outcome`.")
_STREAM: Final = Column("stream", "string", "Path and query.")
_PARTITION: Final = Column("partition", "string", "Who shares the tape; empty where all of the route do.")
_READER: Final = (
    Column("client", "string", "As the log has it; `-` where it has none."),
    Column("user_agent", "string", "`-` where there was none."),
)
_STATUS: Final = Column("status", "int", "HTTP status; 0 where none was sent.")
_ORIGIN_REQUESTS: Final = Column("origin_requests", "bigint", "Requests that the origin was asked because of them.")
_SAVED_BYTES: Final = Column("saved_bytes", "bigint", "How many more those sent whole were before they were coded.")
_ID: Final = Column("id", "string", "The line's, unique among all lines; NULL from gateways that wrote none.")

BRONZE: Final = Table(
    "bronze",
    (
        Column("kind", "string", "`lines` or `rejects`; the partition above the day."),
        Column("day", "date", "UTC day, of rejects that on which they were taken in; the partition."),
        _ID,
        Column("source", "string", "Name of the file that it came in, or the stream's URL."),
        Column("line", "string", "As it came, of rejects the first 4,096 characters."),
        Column("reason", "string", "Why it is no event: `gateway.pipeline.bronze` has the reasons."),
    ),
    ("id",),
    partition_by=("kind", "day"),
)
LINES: Final = replace(BRONZE.with_columns(("day", "id", "source", "line")), kind="lines")
REJECTS: Final = replace(BRONZE.with_columns(("day", "source", "line", "reason")), kind="rejects", key=())
REQUESTS: Final = Table(
    "silver/requests",
    (
        _DAY,
        _ID,
        Column("time", "timestamp", "When the request ended, or the line was written."),
        Column("node", "string", "Gateway that wrote the line."),
        _ROUTE,
        _PROTOCOL,
        _STREAM,
        _PARTITION,
        Column("method", "string", "HTTP method."),
        _MODE,
        _STATUS,
        _OUTCOME,
        Column("duration_s", "double", "Seconds."),
        Column("first_byte_s", "double", "Seconds; NULL where no answer began."),
        Column("start", "string", "Offset asked for; NULL where none was."),
        Column("next_offset", "string", "`Stream-Next-Offset` of the answer, or of the last control event."),
        Column("sent_bytes", "bigint", "Body bytes to the client."),
        Column("saved_bytes", "bigint", "How many more it was before it was coded; 0 where it was not sent whole."),
        Column("fetched_bytes", "bigint", "Body bytes from the origin because of it; the sum counts each once."),
        Column("origin_requests", "bigint", "Requests to the origin because of it; the sum counts each once."),
        Column("collapsed", "bigint", "How many shared the upstream fetch; NULL where there was none."),
        Column("subscribers", "bigint", "Live readers of the stream; NULL but for live reads."),
        Column("coding", "string", "Content coding; NULL where there was none."),
        Column("client", "string", "Address as the log has it; NULL where it has none."),
        Column("user_agent", "string", "NULL where there was none."),
        Column("trace_id", "string", "NULL where there was none."),
        Column("close_reason", "string", "`gateway.telemetry.access_record.CloseReason`; NULL but for live reads."),
        Column("is_final", "boolean", "False for a live read that goes on: the line is no request."),
    ),
    ("id",),
)
SESSIONS: Final = Table(
    "silver/sessions",
    (
        _DAY,
        Column("began", "timestamp", "When its first read was asked for."),
        Column("ended", "timestamp", "When its last read ended."),
        _ROUTE,
        _PROTOCOL,
        _STREAM,
        _PARTITION,
        *_READER,
        Column("reads", "bigint", "Reads that ended: catch-up, long-poll and SSE."),
        Column("live_reads", "bigint", "Those of them that were long-polls and SSE."),
        Column("reconnects", "bigint", "SSE connections after its first."),
        Column("sent_bytes", "bigint", "Body bytes."),
        Column("first_offset", "string", "Where it began; NULL where no read named one."),
        Column("last_offset", "string", "As far as it came."),
        Column("close_reason", "string", "Why its last live read ended; NULL without one."),
    ),
    ("stream", "partition", "client", "user_agent", "began"),
)
TRAFFIC: Final = _gold(
    "traffic",
    (_MINUTE, _ROUTE, _PROTOCOL, _MODE, _OUTCOME),
    Column("requests", "bigint", "Requests that ended: final lines."),
    Column("sent_bytes", "bigint", "Body bytes to clients, of all lines."),
    _SAVED_BYTES,
    Column("fetched_bytes", "bigint", "Body bytes from the origin, of all lines."),
    _ORIGIN_REQUESTS,
    Column(
        "spared_requests",
        "bigint",
        "Requests that ended and caused none at the origin: final lines with `origin_requests` 0.",
    ),
)
OFFLOAD: Final = _gold(
    "offload",
    (_MINUTE, _ROUTE),
    Column("requests", "bigint", "Reads that ended: catch-up, long-poll and SSE."),
    _ORIGIN_REQUESTS,
    Column("sent_bytes", "bigint", "Body bytes to readers."),
    _SAVED_BYTES,
    Column("fetched_bytes", "bigint", "Body bytes that the origin sent for them."),
    Column("by_tape", "bigint", "Reads answered from the tape alone (hit, stale_if_error)."),
    Column("by_collapse", "bigint", "Reads answered from a fetch that another had started (collapsed)."),
    Column("by_follow", "bigint", "Reads answered from the stream's one live request (followed)."),
    Column("by_join", "bigint", "Reads answered from the tape behind one probe (joined, revalidated)."),
    Column("hit_ratio", "double", "by_tape / requests."),
    Column("collapse_ratio", "double", "(by_collapse + by_follow) / requests."),
    Column("joined_ratio", "double", "by_join / requests."),
    Column("request_offload", "double", "1 - origin_requests / requests."),
    Column("byte_offload", "double", "1 - fetched_bytes / (sent_bytes + saved_bytes)."),
)
LATENCY: Final = _gold(
    "latency",
    (_MINUTE, _ROUTE, _MODE),
    Column("requests", "bigint", "Requests that ended; live reads are not among them, whose duration is their wait."),
    Column("duration_sketch", "binary", "KLL sketch (doubles) of seconds; mergeable."),
    *_percentiles("duration"),
    Column("first_byte_sketch", "binary", "KLL sketch (doubles) of seconds; NULL where no answer began."),
    *_percentiles("first_byte"),
)
DELIVERY: Final = _gold(
    "delivery",
    (_MINUTE, _ROUTE),
    Column("deliveries", "bigint", "Long-polls that were woken by an append which the same log has."),
    Column("delay_sketch", "binary", "KLL sketch (doubles) of seconds from the append's answer to the long-poll's."),
    *_percentiles("delay"),
    Column("delay_max_s", "double", "Seconds."),
)
TOP_STREAMS: Final = _gold(
    "top_streams",
    (
        _HOUR,
        Column("by", "string", "`requests` or `bytes`: what the rank goes by."),
        Column("rank", "int", "1 is the busiest; the first 100 are kept."),
    ),
    _ROUTE,
    _PROTOCOL,
    _STREAM,
    Column("requests", "bigint", "Requests that ended."),
    Column("sent_bytes", "bigint", "Body bytes to clients."),
    Column(
        "saved_bytes",
        "bigint",
        "How many more those sent whole were before they were coded; the rank is by both.",
    ),
    Column("fetched_bytes", "bigint", "Body bytes from the origin."),
    Column("readers", "bigint", "Distinct readers (client and user agent), by a HyperLogLog sketch."),
    Column("readers_sketch", "binary", "That sketch; mergeable."),
)
FAN_OUT: Final = _gold(
    "fan_out",
    (_HOUR, _ROUTE, _MODE, Column("at_least", "bigint", "Lower end of the bucket: 1, 2, 4, 8, … readers who shared.")),
    Column("requests", "bigint", "Live reads by `subscribers`, catch-up reads by `collapsed`."),
    Column("most", "bigint", "The largest of them."),
)
RECONNECTS: Final = _gold(
    "reconnects",
    (_MINUTE, _ROUTE),
    Column(
        "reconnects",
        "bigint",
        "Live reads that began where another of the same reader had broken off; may be 0.",
    ),
    Column("readers", "bigint", "Readers who came back."),
    Column("usual", "double", "Median reconnects a minute of the route in the hour before; NULL without five."),
    Column("is_storm", "boolean", "Far more than usual: `gateway.pipeline.gold.reconnects` says how far."),
)
SLOW_CONSUMERS: Final = _gold(
    "slow_consumers",
    (_HOUR, _ROUTE, _STREAM, *_READER),
    Column("cut_off", "bigint", "Live reads that ended because the client did not keep up."),
    Column("sent_bytes", "bigint", "What they got before."),
)
ERRORS: Final = _gold(
    "errors",
    (
        _MINUTE,
        _ROUTE,
        _MODE,
        _STATUS,
        Column("outcome", "string", "refused, failed or aborted, or what it was with a status of 400 and more."),
    ),
    Column("requests", "bigint", "Requests that ended so."),
)
CLOSED_LOOPS: Final = _gold(
    "closed_loops",
    (_MINUTE, _ROUTE, Column("stream", "string", "A stream that is closed."), *_READER),
    Column("requests", "bigint", "Requests at its end in that minute, when one would have done."),
)
ANOMALIES: Final = _gold(
    "anomalies",
    (
        _HOUR,
        _ROUTE,
        Column("measure", "string", "requests, sent_bytes, fetched_bytes, origin_requests, errors or hit_ratio."),
    ),
    Column("value", "double", "In this hour. Only hours that are far from what they were before have a row."),
    Column("before", "double", "Median over the same hour of the days before, seven at most."),
    Column("days", "int", "How many days that is."),
    Column("score", "double", "Distance from it in robust standard deviations (1.4826 x median absolute deviation)."),
)
CURVE: Final = Table(
    "curve/points",
    (
        Column(
            "policy",
            "string",
            "s3-fifo, sieve or lru: the gateway's own, which give up whole tapes, in miniature; lru-blocks: the exact "
            "curve of a least-recently-used cache of blocks, to hold them against.",
        ),
        Column("cache_bytes", "bigint", "`limits.cache_bytes` that the point is for."),
        Column("miss_ratio", "double", "Catch-up reads of which bytes were missing, of all; of blocks for lru-blocks."),
        Column("byte_miss_ratio", "double", "Bytes that were missing, of all that catch-up reads asked for."),
        Column(
            "error", "double", "Half width of the 95 % interval of byte_miss_ratio, over replicas; NULL when exact."
        ),
        Column("references", "bigint", "Catch-up reads (of blocks for lru-blocks) in the log, before sampling."),
        Column("sampled_keys", "bigint", "Tapes (blocks for lru-blocks) that were kept."),
        Column("rate", "double", "Sampling rate R; 1 is exact."),
    ),
    ("policy", "cache_bytes"),
    partition_by=(),
)

GOLD: Final = (
    TRAFFIC,
    OFFLOAD,
    LATENCY,
    DELIVERY,
    TOP_STREAMS,
    FAN_OUT,
    RECONNECTS,
    SLOW_CONSUMERS,
    ERRORS,
    CLOSED_LOOPS,
    ANOMALIES,
)
