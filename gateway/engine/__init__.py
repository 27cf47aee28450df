"""The request pipeline: look a request up in memory, then answer it, join a shared fetch, follow the stream or relay.

`catchup`, `long_poll` and `sse` answer the three kinds of read.  `fetch_table` runs the upstream fetches that readers
share.  `relay` forwards all other requests, and `writes` records the effects of writes on the streams in memory.

Replies that do not belong to a stream are relayed uncached.  A generic shared cache (RFC 9111) would hook in where a
fetch ends in `NotShareable`.
"""
