"""The in-memory origin: a complete Durable Streams server for tests, load runs and first steps.

The origin has its own SSE writer, cursor rule and ETags, so that a bug shared with the gateway cannot go unnoticed.
From the rest of the project it uses only protocol names, the two offset sentinels, the clock and the task owner.

    positions   byte positions and their offset tokens
    messages    the JSON messages of a body, byte for byte as sent
    records     the bytes stored by one append, and slices of them
    producers   idempotent producers: epochs, sequence numbers, fencing
    streams     one stream: records, lifetime, watchers
    store       all streams: create, append, close, delete, fork, trim, expire
    refusals    the errors with which a request may be answered
    requests    parsing of a request's headers and query
    replies     a complete reply as plain data, and the headers of all replies
    sse         SSE events
    live        long-poll and SSE readers
    faults      fault injection
    counters    counts of the requests that reached the origin
    delivery    sends replies, applies faults and counts bytes
    handlers    from request to reply
    app         the composition: Origin, RunningOrigin, start_origin
    s2          an origin for the S2 protocol
"""
