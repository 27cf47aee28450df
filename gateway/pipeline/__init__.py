"""The data pipeline on Spark: from the access log to tables, a miss-ratio curve, a cache plan and a report.

The tables have the names of their stages.  Bronze stores each line unchanged.  Silver types and deduplicates the lines.
Gold aggregates them.

`events` finds the lines.  `curve` computes hit ratios for other cache sizes.  `planner` makes the cache plan.  `report`
shows the tables.  `tables` defines every table and its columns.

The package needs the extra `pipeline`.  Only the command line imports it, and nothing in it serves requests.
"""
