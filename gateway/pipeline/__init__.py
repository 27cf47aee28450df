"""The data pipeline on Spark: from the access log to tables, a miss-ratio curve, a cache plan and a report.

A line's path: `events` reads it, bronze stores it unchanged, silver types and deduplicates it, gold aggregates it.
`curve` computes hit ratios for other cache sizes, `planner` makes the cache plan, `report` shows the tables.  `tables`
names every table and its columns.  The package needs the extra `pipeline`.  Only the command line imports it, and
nothing in it serves requests.
"""
