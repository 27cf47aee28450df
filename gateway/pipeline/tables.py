"""All tables that the pipeline writes: their folders, and their columns with their meanings.

A lake is one folder, or one prefix of an object store:

    <lake>/bronze/            lines, unchanged: events (kind `lines`), and rejected ones with the reason (`rejects`)
    <lake>/silver/requests/   typed, each line once
    <lake>/silver/sessions/   what one reader did on one stream, over its reconnects
    <lake>/gold/<table>/      figures
    <lake>/curve/<table>/     miss-ratio curves
    <lake>/spool/             new lines of files on their way to bronze, while an ingest runs

All tables are Delta tables.  Bronze, silver and gold are partitioned by `day` (UTC, of the event's time), so that a day
can be computed again by replacing a few files.  In gold, `minute` and `hour` are the beginning of the window.  Ratios
without a denominator are NULL.  `route` is `-` if no route matched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
"""The ways in which a read is answered, each with the outcomes that it includes."""
LATE: Final = "too late"
"""The reason of a rejected event whose day counts as complete."""
LATE_DAYS: Final = 3
"""While a source is followed, events more than this many days older than the newest day are rejected."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its Spark SQL type, and its meaning with its unit."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its folder in the lake, its columns and its key columns.

    With a `kind`, it stands for only those rows of the stored table that have this value in the column `kind`.
    """

    place: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    kind: str | None = None
    partition_by: tuple[str, ...] = ("day",)
    """The columns by which the table's files are partitioned."""

    @property
    def name(self) -> str:
        """The kind, or the last part of the folder."""
        return self.kind or self.place.rpartition("/")[2]

    @property
    def title(self) -> str:
        """The folder, and the kind if there is one."""
        return self.place if self.kind is None else f"{self.place}, kind {self.kind}"

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def ddl(self) -> str:
        """The columns in Spark's schema syntax."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def with_columns(self, names: Collection[str]) -> Table:
        """Return the table with only these columns, in the table's order."""
        return replace(self, columns=tuple(column for column in self.columns if column.name in names))


def _columns(lines: list[str], common: Mapping[str, Column]) -> Iterator[Column]:
    """Yield the columns of a declaration.

    Each line has a name, a type and a meaning, or only names of `common` columns.
    """
    for words in map(str.split, lines):
        if common.keys() >= set(words):
            yield from (common[name] for name in words)
        else:
            yield Column(words[0], words[1], " ".join(words[2:]))


def _table(text: str) -> Table:
    """Parse the declaration of a table: a line with the folder and the key columns, then a line for each column."""
    head, *lines = text.strip().splitlines()
    place, *key = head.split()
    columns = tuple(_columns(lines, _COMMON))
    names = {column.name for column in columns}
    return Table(place, columns, tuple(key), partition_by=tuple(name for name in ("kind", "day") if name in names))


DURABLE_STREAMS: Final = "durable-streams"
LEFT_OUT: Final[Mapping[str, str | int]] = {
    "route": "-",
    "protocol": DURABLE_STREAMS,
    "partition": "",
    "status": 0,
    "saved_bytes": 0,
    "origin_requests": 0,
}
"""The values that these fields get if a line lacks them.  Any other missing field is NULL."""
_COMMON_COLUMNS: Final = """
    day              date       UTC day; the table is partitioned by it.
    minute           timestamp  Beginning of the minute in which the line was written.
    hour             timestamp  Beginning of the hour.
    route            string     Configured route; `-` if none matched.
    protocol         string     The clients' protocol: `durable-streams` or `s2`.
    mode             string     `gateway.protocol.mode.Mode`.
    outcome          string     `gateway.protocol.cache_status.Outcome`.
    stream           string     Path and query.
    partition        string     The readers who share the tape; empty if all readers of the route do.
    status           int        HTTP status; 0 if none was sent.
    origin_requests  bigint     Requests to the origin that they caused.
    saved_bytes      bigint     Bytes by which compression shortened the bodies that were sent whole.
    id               string     Identifier of the line, unique among all lines; NULL from gateways that wrote none.
    client           string     Client as in the log; `-` if there is none.
    user_agent       string     User agent; `-` if there is none.
"""
_COMMON: Final = {column.name: column for column in _columns(_COMMON_COLUMNS.strip().splitlines(), {})}

BRONZE: Final = _table("""
    bronze
    kind    string  `lines` or `rejects`; the table is partitioned by it, then by the day.
    day     date    UTC day of the event; of a reject, the day of its ingestion.
    id
    source  string  Name of the file with the line, or the stream's URL.
    line    string  The line, unchanged; of a reject other than a late line, the first 4,096 characters.
    reason  string  Why the line is not an event; `gateway.pipeline.bronze` lists the reasons.
""")
LINES: Final = replace(BRONZE.with_columns(("day", "id", "source", "line")), kind="lines")
REJECTS: Final = replace(BRONZE.with_columns(("day", "source", "line", "reason")), kind="rejects")
REQUESTS: Final = _table("""
    silver/requests day id
    day id
    time             timestamp  When the request ended; of a live read in progress, when the line was written.
    node             string     Gateway that wrote the line.
    route protocol stream partition
    method           string     HTTP method.
    mode status outcome
    duration_s       double     Duration in seconds.
    first_byte_s     double     Seconds until the answer began; NULL if none began.
    start            string     Requested offset; NULL if there is none.
    next_offset      string     `Stream-Next-Offset` of the answer, or of the last control event.
    sent_bytes       bigint     Body bytes to the client.
    saved_bytes      bigint     Bytes by which compression shortened the body; 0 if it was not sent whole.
    fetched_bytes    bigint     Body bytes from the origin for this request; each byte is in one line only.
    origin_requests  bigint     Requests to the origin for this request; each is in one line only.
    collapsed        bigint     Number of reads that shared the upstream fetch; NULL without a fetch.
    subscribers      bigint     Number of live readers of the stream; NULL for other requests.
    coding           string     Content coding; NULL if there is none.
    client           string     Address as in the log; NULL if there is none.
    principal        string     Principal for whom the request was allowed; NULL if no rule had to allow it.
    tenant           string     Tenant of the principal; NULL if there is none.
    issuer           string     Issuer who named the principal; NULL for keys of signed URLs.
    user_agent       string     User agent; NULL if there is none.
    trace_id         string     Trace identifier; NULL if there is none.
    close_reason     string     `gateway.telemetry.access_record.CloseReason`; NULL unless it is a live read.
    is_final         boolean    False if a live read is still in progress; such a line does not count as a request.
""")
SESSIONS: Final = _table("""
    silver/sessions stream partition client user_agent began
    day
    began         timestamp  When the first read began.
    ended         timestamp  When the last read ended.
    route protocol stream partition client user_agent
    reads         bigint     Reads that ended: catch-up, long-poll and SSE.
    live_reads    bigint     Long-polls and SSE reads among them.
    reconnects    bigint     SSE connections after the first one.
    sent_bytes    bigint     Body bytes to the client.
    first_offset  string     Offset at which the session began; NULL if the first read named none.
    last_offset   string     Furthest offset that the session reached.
    close_reason  string     Why the last live read ended; NULL without a live read.
""")
TRAFFIC: Final = _table("""
    gold/traffic minute route protocol mode outcome
    day minute route protocol mode outcome
    requests         bigint  Requests that ended: final lines.
    sent_bytes       bigint  Body bytes to clients, of all lines.
    saved_bytes
    fetched_bytes    bigint  Body bytes from the origin, of all lines.
    origin_requests
    spared_requests  bigint  Requests that ended and caused no request to the origin.
""")
OFFLOAD: Final = _table("""
    gold/offload minute route
    day minute route
    requests         bigint  Reads that ended: catch-up, long-poll and SSE.
    origin_requests
    sent_bytes       bigint  Body bytes to readers.
    saved_bytes
    fetched_bytes    bigint  Body bytes from the origin for these reads.
    by_tape          bigint  Reads answered from the tape alone (hit, stale_if_error).
    by_collapse      bigint  Reads answered from a fetch that another read had started (collapsed).
    by_follow        bigint  Reads answered from the stream's one live request (followed).
    by_join          bigint  Reads answered from the tape after the origin was asked for the tail (joined, revalidated).
    hit_ratio        double  by_tape / requests.
    collapse_ratio   double  (by_collapse + by_follow) / requests.
    joined_ratio     double  by_join / requests.
    request_offload  double  1 - origin_requests / requests.
    byte_offload     double  1 - fetched_bytes / (sent_bytes + saved_bytes).
""")
LATENCY: Final = _table("""
    gold/latency minute route mode
    day minute route mode
    requests           bigint  Requests that ended, without live reads, whose duration is mostly waiting.
    duration_sketch    binary  KLL sketch (doubles) of seconds; mergeable.
    duration_p50_s     double  Median duration in seconds.
    duration_p90_s     double  90th percentile of the duration in seconds.
    duration_p99_s     double  99th percentile of the duration in seconds.
    first_byte_sketch  binary  KLL sketch (doubles) of seconds until the answer began; NULL if none began.
    first_byte_p50_s   double  Median of the seconds until the answer began.
    first_byte_p90_s   double  90th percentile of these seconds.
    first_byte_p99_s   double  99th percentile of these seconds.
""")
DELIVERY: Final = _table("""
    gold/delivery minute route
    day minute route
    deliveries    bigint  Long-polls that were woken by an append in the same log.
    delay_sketch  binary  KLL sketch (doubles) of seconds from the append's answer to the long-poll's.
    delay_p50_s   double  Median delay in seconds.
    delay_p90_s   double  90th percentile of the delay in seconds.
    delay_p99_s   double  99th percentile of the delay in seconds.
    delay_max_s   double  Longest delay in seconds.
""")
TOP_STREAMS: Final = _table("""
    gold/top_streams hour by rank
    day hour
    by              string  `requests` or `bytes`: the figure by which streams are ranked.
    rank            int     Rank of the stream; 1 is the busiest, and 100 ranks are kept.
    route protocol stream
    requests        bigint  Requests that ended.
    sent_bytes      bigint  Body bytes to clients.
    saved_bytes     bigint  Bytes by which compression shortened them; the rank by bytes is by the sum of both.
    fetched_bytes   bigint  Body bytes from the origin.
    readers         bigint  Estimated number of distinct readers (client and user agent).
    readers_sketch  binary  HyperLogLog sketch of the readers; mergeable.
""")
FAN_OUT: Final = _table("""
    gold/fan_out hour route mode at_least
    day hour route mode
    at_least  bigint  Lower end of the bucket: 1, 2, 4, 8, … readers who shared a reply.
    requests  bigint  Number of reads in the bucket, live reads by `subscribers`, catch-up reads by `collapsed`.
    most      bigint  Most readers who shared a reply.
""")
RECONNECTS: Final = _table("""
    gold/reconnects minute route
    day minute route
    reconnects  bigint   Live reads that began soon after another read of the same reader had broken off; may be 0.
    readers     bigint   Readers who reconnected.
    usual       double   Median of the route's reconnects a minute in the hour before; NULL with fewer than five values.
    is_storm    boolean  Whether there were far more than usual; `gateway.pipeline.gold.reconnects` defines it.
""")
SLOW_CONSUMERS: Final = _table("""
    gold/slow_consumers hour route stream client user_agent
    day hour route stream client user_agent
    cut_off     bigint  Live reads that ended because the client did not keep up.
    sent_bytes  bigint  Body bytes that they were sent before.
""")
ERRORS: Final = _table("""
    gold/errors minute route mode status outcome
    day minute route mode status
    outcome   string  refused, failed, aborted (without live readers that left), or other with a status of 400 or more.
    requests  bigint  Requests with this outcome and status.
""")
USAGE: Final = _table("""
    gold/usage hour issuer tenant principal
    day hour
    issuer         string  Issuer who named the principal; `-` for keys of signed URLs.
    tenant         string  Tenant of the principal; `-` if there is none.
    principal      string  Principal for whom the requests were allowed; `-` if only the tenant is named.
    requests       bigint  Requests that ended, without those that the gateway refused (429, 413) or failed to answer.
    sent_bytes     bigint  Body bytes to clients.
    fetched_bytes  bigint  Body bytes from the origin for these requests.
    live_s         double  Seconds of live reads that ended in this hour.
""")
CLOSED_LOOPS: Final = _table("""
    gold/closed_loops minute route stream client user_agent
    day minute route
    stream    string  A closed stream.
    client user_agent
    requests  bigint  Requests at the stream's end in that minute, although one is enough.
""")
ANOMALIES: Final = _table("""
    gold/anomalies hour route measure
    day hour route
    measure  string  requests, sent_bytes, fetched_bytes, origin_requests, errors or hit_ratio.
    value    double  Value in this hour.  Only hours that differ greatly from the days before have a row.
    before   double  Median of the same hour on the days before, at most seven.
    days     int     Number of these days.
    score    double  Difference from the median in robust standard deviations (1.4826 x median absolute deviation).
""")
CURVE: Final = _table("""
    curve/points policy cache_bytes
    policy           string  The policy of `limits.eviction`: s3-fifo, sieve or lru.
    cache_bytes      bigint  Cache size (`limits.cache_bytes`) of this point of the curve.
    miss_ratio       double  Share of catch-up reads with missing bytes.
    byte_miss_ratio  double  Share of the requested bytes of catch-up reads that were missing.
    error            double  Half width of the 95 % confidence interval of byte_miss_ratio; NULL if it is exact.
    references       bigint  Catch-up reads in the log, before sampling.
    sampled_keys     bigint  Tapes that were replayed.
    rate             double  Sampled share of the tapes; 1 means that all were replayed.
""")

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
    USAGE,
    CLOSED_LOOPS,
    ANOMALIES,
)
