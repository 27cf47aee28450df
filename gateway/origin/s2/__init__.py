"""The in-memory S2 origin: basins, streams and records over S2's API, for tests, load runs and first steps.

The encodings are those of `gateway.s2`, and are tested with S2's real SDKs.  The HTTP implementation is separate from
the gateway's.

    refusals    the errors with which a request may be answered
    config      configuration of basins and streams, and its JSON
    stream      one stream: records, timestamps, append conditions, trim, retention
    account     basins, streams and access tokens: create, configure, list, delete
    reading     the course of one read: batches, heartbeats, waiting, the end
    calls       parsing of a request: its call, its names, its encodings
    control     the control plane: from a request to a reply
    exchange    one request and the channel for its answer
    http1       HTTP/1.1, with h11
    http2       HTTP/2, with h2
    sockets     a client's socket, and the choice of its protocol
    faults      fault injection
    counters    counts of the requests and records that reached the origin
    delivery    sends answers, applies faults and counts
    codings     content codings of unary bodies
    bodies      whole bodies
    forms       batches as frames and as events
    reads       unary reads, SSE reads, read sessions
    handlers    from a request to its answer
    app         the composition: S2Origin, RunningS2Origin, start_s2_origin
"""
