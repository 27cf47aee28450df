"""The gold tables: silver's lines as figures, a window each.

Each module makes one table, or a few that are cut from the same sums, as a function of frames that does nothing but
plan: whoever calls it reads and writes.  What a table takes beside the lines of its own day is said where it is made:

    table             from                          looks back on
    traffic, errors   sums a minute (`traffic`)     nothing
    offload           the same                      nothing
    latency           lines                         nothing
    top_streams       lines                         nothing
    fan_out           lines                         nothing
    slow_consumers    lines                         nothing
    delivery          lines                         the last hour of the day before: appends
    closed_loops      lines                         the same: streams that were closed
    reconnects        lines, and its own rows       the same: reads that ended, and what is usual
    anomalies         traffic, offload, errors      seven days

So a day's figures depend on that day's lines and on days before, never on a later day's, and are the same whether
days are computed one by one as they come or all at once; `gateway.pipeline.aggregate` computes a day again where one
that it looks back on has changed.
"""
