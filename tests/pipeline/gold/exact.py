"""The gold tables as a lake has them, and computed again by DuckDB's SQL: with exact percentiles, and joins instead of
Spark's windows.
"""

from __future__ import annotations

import math
from datetime import date, datetime
from operator import itemgetter
from typing import Any, Final

import duckdb
import pyarrow as pa

from gateway.pipeline.lake import Lake
from gateway.pipeline.tables import Table

_BEGAN: Final = "time - to_microseconds(cast(round(duration_s * 1e6) as bigint))"
_HOUR_BEFORE: Final = "cast(day as timestamp) - interval 1 hour"

TRAFFIC: Final = """
select day, date_trunc('minute', time) as minute, route, protocol, mode, outcome,
    count(*) filter (is_final) as requests, sum(sent_bytes) as sent_bytes, sum(saved_bytes) as saved_bytes,
    sum(fetched_bytes) as fetched_bytes, sum(origin_requests) as origin_requests,
    count(*) filter (is_final and origin_requests = 0) as spared_requests
from silver group by all
"""
OFFLOAD: Final = """
select *, by_tape / nullif(requests, 0) as hit_ratio, (by_collapse + by_follow) / nullif(requests, 0) as collapse_ratio,
    by_join / nullif(requests, 0) as joined_ratio, 1 - origin_requests / nullif(requests, 0) as request_offload,
    1 - fetched_bytes / nullif(sent_bytes + saved_bytes, 0) as byte_offload
from (
    select day, date_trunc('minute', time) as minute, route,
        count(*) filter (is_final) as requests, sum(origin_requests) as origin_requests,
        sum(sent_bytes) as sent_bytes, sum(saved_bytes) as saved_bytes, sum(fetched_bytes) as fetched_bytes,
        count(*) filter (is_final and outcome in ('hit', 'stale_if_error')) as by_tape,
        count(*) filter (is_final and outcome = 'collapsed') as by_collapse,
        count(*) filter (is_final and outcome = 'followed') as by_follow,
        count(*) filter (is_final and outcome in ('joined', 'revalidated')) as by_join
    from silver where mode in ('catchup', 'longpoll', 'sse') group by all
)
"""
LATENCY: Final = """
select day, date_trunc('minute', time) as minute, route, mode, count(*) as requests,
    quantile_disc(duration_s, 0.5) as duration_p50_s, quantile_disc(duration_s, 0.9) as duration_p90_s,
    quantile_disc(duration_s, 0.99) as duration_p99_s, quantile_disc(first_byte_s, 0.5) as first_byte_p50_s,
    quantile_disc(first_byte_s, 0.9) as first_byte_p90_s, quantile_disc(first_byte_s, 0.99) as first_byte_p99_s
from silver where is_final and mode not in ('longpoll', 'sse') group by all
"""
DELIVERY: Final = f"""
with resets as (
    select route, stream, time from silver
    where is_final and (mode = 'create' and status = 201 or mode = 'delete' and status between 200 and 299)
), appends as (
    select *, {_BEGAN} as began from silver
    where is_final and mode = 'append' and status between 200 and 299 and next_offset is not null
), polls as (
    select *, {_BEGAN} as began from silver
    where is_final and mode = 'longpoll' and status = 200 and close_reason = 'answered' and "start" <> 'now'
), pairs as (
    select p.id, p.day, p.time, p.route, p.node, p.began, a.time as a_time, a.node as a_node, a.began as a_began
    from polls p join appends a on a.route = p.route and a.stream = p.stream and a.next_offset > p."start"
        and a.day <= p.day and a.time >= cast(p.day as timestamp) - interval 1 hour
    where not exists (
        select 1 from resets r where r.route = p.route and r.stream = p.stream
            and r.time > least(a.time, p.began) and r.time <= greatest(a.time, p.began)
    )
    qualify row_number() over (partition by p.id order by a.next_offset, a.time) = 1
), delays as (
    select day, date_trunc('minute', time) as minute, route,
        greatest(0, epoch_us(time) - epoch_us(a_time)) / 1e6 as delay_s
    from pairs where node = a_node and a_time >= began and a_began <= time
)
select day, minute, route, count(*) as deliveries, quantile_disc(delay_s, 0.5) as delay_p50_s,
    quantile_disc(delay_s, 0.9) as delay_p90_s, quantile_disc(delay_s, 0.99) as delay_p99_s, max(delay_s) as delay_max_s
from delays group by all
"""
TOP_STREAMS: Final = """
with figures as (
    select day, date_trunc('hour', time) as hour, route, protocol, stream, count(*) filter (is_final) as requests,
        sum(sent_bytes) as sent_bytes, sum(saved_bytes) as saved_bytes, sum(fetched_bytes) as fetched_bytes,
        count(distinct (coalesce(client, '-'), coalesce(user_agent, '-')))
            filter (mode in ('catchup', 'longpoll', 'sse')) as readers
    from silver group by all
), both_ways as (
    select *, 'requests' as "by", requests as weight from figures
    union all select *, 'bytes' as "by", sent_bytes + saved_bytes as weight from figures
)
select * exclude weight, row_number() over (partition by hour, "by" order by weight desc, route, stream) as rank
from both_ways where weight > 0 qualify rank <= 100
"""
FAN_OUT: Final = """
select day, date_trunc('hour', time) as hour, route, mode, list_max([p for p in range(40) if (1 << p) <= n]) as p,
    1 << p as at_least, count(*) as requests, max(n) as most
from (select *, case when mode = 'catchup' then collapsed else subscribers end as n from silver)
where is_final and mode in ('catchup', 'longpoll', 'sse') and n > 0 group by all
"""
_RETURNS: Final = f"""
live as (
    select *, {_BEGAN} as began, coalesce(client, '-') as c, coalesce(user_agent, '-') as u from silver
    where is_final and mode in ('longpoll', 'sse')
), known as (
    select *, exists (
        select 1 from live e where e.route = l.route and e.stream = l.stream and e.partition = l.partition
            and e.c = l.c and e.u = l.u and e.close_reason not in ('answered', 'timed_out', 'closed')
            and e.time < l.began and e.time >= l.began - interval 300 second
            and e.time >= cast(l.day as timestamp) - interval 1 hour
    ) as is_back from live l
), rows as (
    select day, date_trunc('minute', time) as minute, route, count(*) filter (is_back) as reconnects,
        count(distinct (c, u)) filter (is_back) as readers
    from known group by all
)
"""
RECONNECTS: Final = f"""
with {_RETURNS}, judged as (
    select r.*, count(b.minute) as n, median(b.reconnects) as middle, mad(b.reconnects) as around
    from rows r left join rows b on b.route = r.route and b.minute < r.minute
        and b.minute >= r.minute - interval 1 hour
    group by all
)
select day, minute, route, reconnects, readers, case when n >= 5 then middle end as usual,
    coalesce(n >= 5 and reconnects >= 20 and reconnects >= 2 * middle
        and reconnects - middle >= 5 * greatest(1, sqrt(middle), 1.4826 * around), false) as is_storm
from judged
"""
SLOW_CONSUMERS: Final = """
select day, date_trunc('hour', time) as hour, route, stream, coalesce(client, '-') as client,
    coalesce(user_agent, '-') as user_agent, count(*) as cut_off, sum(sent_bytes) as sent_bytes
from silver where is_final and close_reason = 'slow' group by all
"""
USAGE: Final = """
select day, date_trunc('hour', time) as hour, coalesce(issuer, '-') as issuer, coalesce(tenant, '-') as tenant,
    coalesce(principal, '-') as principal,
    count(*) filter (is_final and outcome <> 'failed') as requests, sum(sent_bytes) as sent_bytes,
    sum(fetched_bytes) as fetched_bytes,
    coalesce(sum(duration_s) filter (is_final and mode in ('longpoll', 'sse')), 0) as live_s
from silver where (principal is not null or tenant is not null) and outcome <> 'refused' group by all
"""
ERRORS: Final = """
select day, date_trunc('minute', time) as minute, route, mode, status, outcome, count(*) as requests
from silver where is_final and (status >= 400 or outcome in ('refused', 'failed')
    or outcome = 'aborted' and close_reason is distinct from 'left') group by all
"""
CLOSED_LOOPS: Final = """
with told as (select * from silver where is_final and protocol = 'durable-streams' and mode in ('longpoll', 'sse') and (
    close_reason = 'closed' or mode = 'longpoll' and status = 204 and outcome = 'hit' and close_reason is null
)),
found as (
    select * from told union all
    select * from silver c where is_final and protocol = 'durable-streams' and mode = 'catchup' and outcome = 'hit'
        and status in (200, 304) and "start" = next_offset and exists (
            select 1 from told t where t.route = c.route and t.stream = c.stream and t.next_offset = c.next_offset
                and t.time <= c.time and t.time >= c.time - interval 1 hour
                and t.time >= cast(c.day as timestamp) - interval 1 hour
        )
)
select day, date_trunc('minute', time) as minute, route, stream, coalesce(client, '-') as client,
    coalesce(user_agent, '-') as user_agent, count(*) as requests
from found group by all having count(*) >= 10
"""
ANOMALIES: Final = """
with hours as (
    select route, day, hour, requests, sent_bytes, fetched_bytes, origin_requests, errors,
        by_tape / nullif(reads, 0) as hit_ratio
    from (
        select route, day, date_part('hour', time) as hour, count(*) filter (is_final) as requests,
            sum(sent_bytes) as sent_bytes, sum(fetched_bytes) as fetched_bytes, sum(origin_requests) as origin_requests,
            count(*) filter (is_final and (status >= 400 or outcome in ('refused', 'failed')
                or outcome = 'aborted' and close_reason is distinct from 'left')) as errors,
            count(*) filter (is_final and mode in ('catchup', 'longpoll', 'sse')) as reads,
            count(*) filter (is_final and mode in ('catchup', 'longpoll', 'sse')
                and outcome in ('hit', 'stale_if_error')) as by_tape
        from silver group by all
    )
), slots as (
    select * from (select distinct route from silver), (select distinct day from silver), range(24) h(hour)
), present as (select distinct route, day from silver),
long as (
    select s.route, s.day, s.hour, p.day is not null as is_present, unnest([
        {'measure': 'requests', 'value': coalesce(requests, 0)::double, 'grain': 10.0},
        {'measure': 'sent_bytes', 'value': coalesce(sent_bytes, 0)::double, 'grain': 1e6},
        {'measure': 'fetched_bytes', 'value': coalesce(fetched_bytes, 0)::double, 'grain': 1e6},
        {'measure': 'origin_requests', 'value': coalesce(origin_requests, 0)::double, 'grain': 10.0},
        {'measure': 'errors', 'value': coalesce(errors, 0)::double, 'grain': 10.0},
        {'measure': 'hit_ratio', 'value': hit_ratio, 'grain': 0.05}], recursive := true)
    from slots s left join hours h using (route, day, hour) left join present p using (route, day)
), judged as (
    select n.route, n.day, n.hour, n.measure, n.value, n.grain, median(b.value) as before, count(b.value) as days,
        mad(b.value) as around
    from long n join long b on b.route = n.route and b.hour = n.hour and b.measure = n.measure and b.is_present
        and b.value is not null and b.day < n.day and b.day >= n.day - 7
    where n.value is not null group by all
)
select day, cast(day as timestamp) + to_hours(hour::bigint) as hour, route, measure, value, before, days,
    (value - before) / greatest(1.4826 * around, abs(before) / 10, grain) as score
from judged where days >= 3 and abs(score) >= 5
    and cast(day as timestamp) + to_hours(hour::bigint) < (select date_trunc('hour', max(time)) from silver)
"""

_SQL: Final = {
    "traffic": TRAFFIC,
    "offload": OFFLOAD,
    "latency": LATENCY,
    "delivery": DELIVERY,
    "top_streams": TOP_STREAMS,
    "fan_out": FAN_OUT,
    "reconnects": RECONNECTS,
    "slow_consumers": SLOW_CONSUMERS,
    "errors": ERRORS,
    "usage": USAGE,
    "closed_loops": CLOSED_LOOPS,
    "anomalies": ANOMALIES,
}

Row = tuple[Any, ...]


def columns(table: Table) -> list[str]:
    """The table's columns that any correct computation agrees on: all but sketches."""
    return [column.name for column in table.columns if column.type != "binary"]


def rows(silver: pa.Table, table: Table) -> list[Row]:
    """The table's rows as DuckDB computes them, in the order of its key; days and times as text."""
    names = [
        f"cast({name} as varchar) as {name}" if name in ("day", "minute", "hour") else f'"{name}"'
        for name in columns(table)
    ]
    key = ", ".join(f'"{name}"' for name in table.key)
    with duckdb.connect() as connection:
        connection.register("silver", silver)
        found = connection.execute(f"select {', '.join(names)} from ({_SQL[table.name]}) order by {key}")
        return list(found.fetchall())


def stored(lake: Lake, table: Table) -> list[Row]:
    """The table's rows as the lake has them, in the order of its key; days and times as text.

    They are read without Spark, whose least job takes a third of a second.
    """
    found = lake.snapshot(table).arrow(columns(table)).read_all().to_pylist()
    told = [{name: _as_text(value) for name, value in row.items()} for row in found]
    return [tuple(row.values()) for row in sorted(told, key=itemgetter(*table.key))]


def _as_text(value: object) -> object:
    if isinstance(value, datetime):
        return str(value.replace(tzinfo=None))
    return str(value) if isinstance(value, date) else value


def is_same(one: Row, other: Row) -> bool:
    """Whether two rows are equal, except for the last digits of quotients."""
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(one, other, strict=True)
    )
