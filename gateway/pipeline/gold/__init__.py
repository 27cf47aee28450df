"""The gold tables: figures for each minute or hour, computed from the lines of silver.

Each module computes one table; `windows` computes several.  The functions turn data frames into data frames, and
`gateway.pipeline.aggregate` reads and writes the tables.

Most figures of a day need the lines of that day only.  Some tables also need earlier days:

- `delivery` looks for appends in the last hour of the day before, and `closed_loops` for closed streams.
- `reconnects` looks there for reads that ended, and compares with its own rows of that hour.
- `anomalies` compares with the seven days before.  It is computed from three other tables.

No figure depends on a later day.  The result is the same whether days are computed one by one or all at once.
"""
