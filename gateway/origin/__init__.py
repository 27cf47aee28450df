"""The in-memory origin: a whole Durable Streams server for tests, load runs and first steps.

It shares only protocol names, the two offset sentinels, the clock and the task owner with the rest of the project: its
SSE writer, cursor rule and ETags are its own, so that one encoding bug cannot cancel itself out.

    positions   where a byte lies, and the offset tokens that say so
    messages    the JSON messages of a body, byte for byte as sent
    records     what one append stored, and slices of it
    producers   idempotent producers: epochs, sequence numbers, fencing
    streams     one stream: records, lifetime, watchers
    store       all streams: create, append, close, delete, fork, trim, expire
    refusals    everything the store or a request can be refused for
    requests    a request's headers and query, judged
    replies     a finished answer as plain data, and the headers all answers carry
    sse         events on the wire
    live        long-poll and SSE readers
    faults      switches for bad luck
    counters    what reached the origin
    delivery    bytes onto the connection, through the faults, past the counters
    handlers    from request to reply
    app         the composition: Origin, RunningOrigin, start_origin
"""
