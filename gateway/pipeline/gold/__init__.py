"""The gold tables: figures computed from silver's lines, by window of time.

Each module computes one table, or (`windows`) several, as functions from data frames to data frames; their caller reads
and writes them.  Most are of the lines of their own day.  Some look back: `delivery` (appends), `closed_loops` (streams
that were closed) and `reconnects` (reads that ended, and its own rows, for what is usual) on the last hour of the day
before, and `anomalies`, which is made from three other tables, on seven days.

So a day's figures depend on that day's lines and on earlier days only.  They are the same whether days are computed one
by one or all at once.  `gateway.pipeline.aggregate` computes a day again if a day that it looks back on has changed.
"""
