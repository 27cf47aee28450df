"""S2 streams presented as Durable Streams.

The engine sends requests to origins through an `Upstream`.  For routes with `present = "durable-streams"`, this package
is that upstream.  It answers each Durable Streams request by means of S2 requests to the origin.  To the engine, the
origin seems to speak Durable Streams, so tapes, shared fetches and live readers work as for other origins.

    content     the three forms of records as a stream's content
    streams     the stream and basin that a URL names, and the last known state of each stream
    replies     one request to a bridged stream, and its reply: head, body, errors in terms of Durable Streams
    origin      the S2 requests
    reads       metadata, catch-up and long-poll
    live        SSE from a read session
    writes      creating, appending, closing, deleting
    bridge      the `Upstream`
"""
