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
"""How a read was answered, by its outcome."""
LATE: Final = "too late"
"""The reason of a reject that is an event, of a day that counts as complete."""
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


def _columns(lines: list[str], common: Mapping[str, Column]) -> Iterator[Column]:
    """The columns of a declaration: each line has a name, a type and a meaning, or names of `common` columns only."""
    for words in map(str.split, lines):
        if common.keys() >= set(words):
            yield from (common[name] for name in words)
        else:
            yield Column(words[0], words[1], " ".join(words[2:]))


def _table(text: str) -> Table:
    """A table from its declaration: a line with its place and its key columns, then its columns."""
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
"""The meaning of a field that a line lacks, where that is not "unknown"."""
_COMMON_COLUMNS: Final = """
    day              date       UTC day; the partition.
    minute           timestamp  Beginning of the minute in which the line was written.
    hour             timestamp  Beginning of the hour.
    route            string     Configured route, `-` where none matched.
    protocol         string     What clients speak: `durable-streams` or `s2`.
    mode             string     `gateway.protocol.mode.Mode`.
    outcome          string     `gateway.protocol.cache_status.Outcome`.
    stream           string     Path and query.
    partition        string     Who shares the tape; empty where all of the route do.
    status           int        HTTP status; 0 where none was sent.
    origin_requests  bigint     Requests that the origin was asked because of them.
    saved_bytes      bigint     How many more those sent whole were before they were coded.
    id               string     The line's, unique among all lines; NULL from gateways that wrote none.
    client           string     As the log has it; `-` where it has none.
    user_agent       string     `-` where there was none.
"""
_COMMON: Final = {column.name: column for column in _columns(_COMMON_COLUMNS.strip().splitlines(), {})}

BRONZE: Final = _table("""
    bronze
    kind    string  `lines` or `rejects`; the partition above the day.
    day     date    UTC day, of rejects that on which they were taken in; the partition.
    id
    source  string  Name of the file that it came in, or the stream's URL.
    line    string  As it came, of rejects other than late lines the first 4,096 characters.
    reason  string  Why it is no event: `gateway.pipeline.bronze` has the reasons.
""")
LINES: Final = replace(BRONZE.with_columns(("day", "id", "source", "line")), kind="lines")
REJECTS: Final = replace(BRONZE.with_columns(("day", "source", "line", "reason")), kind="rejects")
REQUESTS: Final = _table("""
    silver/requests day id
    day id
    time             timestamp  When the request ended, or the line was written.
    node             string     Gateway that wrote the line.
    route protocol stream partition
    method           string     HTTP method.
    mode status outcome
    duration_s       double     Seconds.
    first_byte_s     double     Seconds; NULL where no answer began.
    start            string     Offset asked for; NULL where none was.
    next_offset      string     `Stream-Next-Offset` of the answer, or of the last control event.
    sent_bytes       bigint     Body bytes to the client.
    saved_bytes      bigint     How many more it was before it was coded; 0 where it was not sent whole.
    fetched_bytes    bigint     Body bytes from the origin because of it; the sum counts each once.
    origin_requests  bigint     Requests to the origin because of it; the sum counts each once.
    collapsed        bigint     How many shared the upstream fetch; NULL where there was none.
    subscribers      bigint     Live readers of the stream; NULL but for live reads.
    coding           string     Content coding; NULL where there was none.
    client           string     Address as the log has it; NULL where it has none.
    principal        string     For whom the request was allowed; NULL where no rule had to allow it.
    tenant           string     Of the principal; NULL where it has none.
    issuer           string     Who has named the principal; NULL for keys of signed URLs.
    user_agent       string     NULL where there was none.
    trace_id         string     NULL where there was none.
    close_reason     string     `gateway.telemetry.access_record.CloseReason`; NULL but for live reads.
    is_final         boolean    False for a live read that goes on: the line is no request.
""")
SESSIONS: Final = _table("""
    silver/sessions stream partition client user_agent began
    day
    began         timestamp  When its first read was asked for.
    ended         timestamp  When its last read ended.
    route protocol stream partition client user_agent
    reads         bigint     Reads that ended: catch-up, long-poll and SSE.
    live_reads    bigint     Those of them that were long-polls and SSE.
    reconnects    bigint     SSE connections after its first.
    sent_bytes    bigint     Body bytes.
    first_offset  string     Where it began; NULL where no read named one.
    last_offset   string     As far as it came.
    close_reason  string     Why its last live read ended; NULL without one.
""")
TRAFFIC: Final = _table("""
    gold/traffic minute route protocol mode outcome
    day minute route protocol mode outcome
    requests         bigint  Requests that ended: final lines.
    sent_bytes       bigint  Body bytes to clients, of all lines.
    saved_bytes
    fetched_bytes    bigint  Body bytes from the origin, of all lines.
    origin_requests
    spared_requests  bigint  Requests that ended and caused none at the origin: final lines with `origin_requests` 0.
""")
OFFLOAD: Final = _table("""
    gold/offload minute route
    day minute route
    requests         bigint  Reads that ended: catch-up, long-poll and SSE.
    origin_requests
    sent_bytes       bigint  Body bytes to readers.
    saved_bytes
    fetched_bytes    bigint  Body bytes that the origin sent for them.
    by_tape          bigint  Reads answered from the tape alone (hit, stale_if_error).
    by_collapse      bigint  Reads answered from a fetch that another had started (collapsed).
    by_follow        bigint  Reads answered from the stream's one live request (followed).
    by_join          bigint  Reads answered from the tape behind one probe (joined, revalidated).
    hit_ratio        double  by_tape / requests.
    collapse_ratio   double  (by_collapse + by_follow) / requests.
    joined_ratio     double  by_join / requests.
    request_offload  double  1 - origin_requests / requests.
    byte_offload     double  1 - fetched_bytes / (sent_bytes + saved_bytes).
""")
LATENCY: Final = _table("""
    gold/latency minute route mode
    day minute route mode
    requests           bigint  Requests that ended; live reads are not among them, whose duration is their wait.
    duration_sketch    binary  KLL sketch (doubles) of seconds; mergeable.
    duration_p50_s     double  Seconds.
    duration_p90_s     double  Seconds.
    duration_p99_s     double  Seconds.
    first_byte_sketch  binary  KLL sketch (doubles) of seconds; NULL where no answer began.
    first_byte_p50_s   double  Seconds.
    first_byte_p90_s   double  Seconds.
    first_byte_p99_s   double  Seconds.
""")
DELIVERY: Final = _table("""
    gold/delivery minute route
    day minute route
    deliveries    bigint  Long-polls that were woken by an append which the same log has.
    delay_sketch  binary  KLL sketch (doubles) of seconds from the append's answer to the long-poll's.
    delay_p50_s   double  Seconds.
    delay_p90_s   double  Seconds.
    delay_p99_s   double  Seconds.
    delay_max_s   double  Seconds.
""")
TOP_STREAMS: Final = _table("""
    gold/top_streams hour by rank
    day hour
    by              string  `requests` or `bytes`: what the rank goes by.
    rank            int     1 is the busiest; the first 100 are kept.
    route protocol stream
    requests        bigint  Requests that ended.
    sent_bytes      bigint  Body bytes to clients.
    saved_bytes     bigint  How many more those sent whole were before they were coded; the rank is by both.
    fetched_bytes   bigint  Body bytes from the origin.
    readers         bigint  Distinct readers (client and user agent), by a HyperLogLog sketch.
    readers_sketch  binary  That sketch; mergeable.
""")
FAN_OUT: Final = _table("""
    gold/fan_out hour route mode at_least
    day hour route mode
    at_least  bigint  Lower end of the bucket: 1, 2, 4, 8, … readers who shared.
    requests  bigint  Live reads by `subscribers`, catch-up reads by `collapsed`.
    most      bigint  The largest of them.
""")
RECONNECTS: Final = _table("""
    gold/reconnects minute route
    day minute route
    reconnects  bigint   Live reads that began where another of the same reader had broken off; may be 0.
    readers     bigint   Readers who came back.
    usual       double   Median reconnects a minute of the route in the hour before; NULL without five.
    is_storm    boolean  Far more than usual: `gateway.pipeline.gold.reconnects` says how far.
""")
SLOW_CONSUMERS: Final = _table("""
    gold/slow_consumers hour route stream client user_agent
    day hour route stream client user_agent
    cut_off     bigint  Live reads that ended because the client did not keep up.
    sent_bytes  bigint  What they got before.
""")
ERRORS: Final = _table("""
    gold/errors minute route mode status outcome
    day minute route mode status
    outcome   string  refused, failed, aborted (but for live readers that left), or any with a status of 400 and more.
    requests  bigint  Requests that ended so.
""")
USAGE: Final = _table("""
    gold/usage hour issuer tenant principal
    day hour
    issuer         string  Who has named the principal; `-` for keys of signed URLs.
    tenant         string  Of the principal; `-` where it has none.
    principal      string  For whom the requests were allowed; `-` where only the tenant is named.
    requests       bigint  Requests that ended, but for those that the gateway refused (429, 413) or failed to answer.
    sent_bytes     bigint  Body bytes to clients.
    fetched_bytes  bigint  Body bytes from the origin because of them.
    live_s         double  Seconds of live reads that ended in this hour.
""")
CLOSED_LOOPS: Final = _table("""
    gold/closed_loops minute route stream client user_agent
    day minute route
    stream    string  A stream that is closed.
    client user_agent
    requests  bigint  Requests at its end in that minute, when one would have done.
""")
ANOMALIES: Final = _table("""
    gold/anomalies hour route measure
    day hour route
    measure  string  requests, sent_bytes, fetched_bytes, origin_requests, errors or hit_ratio.
    value    double  In this hour. Only hours that are far from what they were before have a row.
    before   double  Median over the same hour of the days before, seven at most.
    days     int     How many days that is.
    score    double  Distance from it in robust standard deviations (1.4826 x median absolute deviation).
""")
CURVE: Final = _table("""
    curve/points policy cache_bytes
    policy           string  The policy of `limits.eviction`: s3-fifo, sieve or lru.
    cache_bytes      bigint  `limits.cache_bytes` that the point is for.
    miss_ratio       double  Catch-up reads of which bytes were missing, of all.
    byte_miss_ratio  double  Bytes that were missing, of all that catch-up reads asked for.
    error            double  Half width of the 95 % interval of byte_miss_ratio, over replicas; NULL when exact.
    references       bigint  Catch-up reads in the log, before sampling.
    sampled_keys     bigint  Tapes that were replayed.
    rate             double  Sampling rate R; 1 is exact.
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
