"""The gold tables: figures computed from silver's lines, by window of time.

Each module computes one table, or (`windows`) several, as functions from data frames to data frames; their caller reads
and writes them.  Some tables need more than the lines of their own day:

    table             from                          looks back on
    traffic, errors   sums a minute (`windows`)     nothing
    offload           the same                      nothing
    latency           lines                         nothing
    top_streams       lines                         nothing
    fan_out           lines                         nothing
    slow_consumers    lines                         nothing
    delivery          lines                         the last hour of the day before: appends
    closed_loops      lines                         the same: streams that were closed
    reconnects        lines, and its own rows       the same: reads that ended, and what is usual
    anomalies         traffic, offload, errors      seven days

So a day's figures depend on that day's lines and on earlier days only.  They are the same whether days are computed one
by one or all at once.  `gateway.pipeline.aggregate` computes a day again if a day that it looks back on has changed.
"""
