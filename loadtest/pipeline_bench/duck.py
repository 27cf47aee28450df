"""DuckDB on the same lines: two common queries in a single process, for comparison."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_FIELDS: Final = (
    "{time: 'DOUBLE', id: 'VARCHAR', route: 'VARCHAR', stream: 'VARCHAR', mode: 'VARCHAR', status: 'BIGINT', "
    "duration_s: 'DOUBLE', sent_bytes: 'BIGINT', fetched_bytes: 'BIGINT', is_final: 'BOOLEAN'}"
)


def ask_duckdb(folder: Path, threads: int = 2) -> dict[str, float]:
    """Seconds for figures by the minute with percentiles, and for the ten busiest streams; each reads the lines."""
    import duckdb

    lines = f"read_json('{folder}/access.log*', columns={_FIELDS}, format='newline_delimited', ignore_errors=true)"
    took = {}
    with duckdb.connect(config={"threads": threads}) as base:
        for name, question in (
            (
                "minutes",
                f"""select time_bucket(interval 1 minute, to_timestamp(time)) as minute, route, mode, count(*),
                sum(sent_bytes), sum(fetched_bytes), approx_quantile(duration_s, [0.5, 0.9, 0.99])
                from (select distinct on (id) * from {lines} where time is not null) group by all""",
            ),
            (
                "top",
                f"select stream, count(*) n from {lines} where time is not null group by all order by n desc limit 10",
            ),
        ):
            began = time.perf_counter()
            base.execute(question).fetchall()
            took[name] = time.perf_counter() - began
    return took
