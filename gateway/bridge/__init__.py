"""S2 streams presented as Durable Streams.

The engine asks origins by an `Upstream`.  For a route with `present = "durable-streams"` this package is that
upstream: it answers each Durable Streams request with what S2 requests at the origin bring.  The engine sees an origin
that speaks Durable Streams, so tapes, shared fetches, live readers and everything else work as for any other.

    content     the three ways in which records are a stream's content
    streams     the stream and basin that a URL names, and the last sighting of each stream
    replies     one request to a bridged stream, and its reply: head, body, errors in Durable Streams' terms
    origin      the S2 requests
    reads       metadata, catch-up and long-poll
    live        SSE from a read session
    writes      creating, appending, closing, deleting
    bridge      the `Upstream`
"""
