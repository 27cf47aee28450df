"""S2 streams presented as Durable Streams.

The engine asks origins by an `Upstream`.  For a route with `present = "durable-streams"` this package is that
upstream: it answers each Durable Streams request with what S2 requests at the origin bring.  The engine sees an origin
that speaks Durable Streams, so tapes, shared fetches, live readers and everything else work as for any other.

    offsets     sequence numbers as offsets
    messages    JSON bodies cut into messages, byte for byte
    content     the three ways in which records are a stream's content
    page        what readers see of a run of records: commands are left out, the mark of the close ends the stream
    names       which stream of which basin a URL names
    sightings   what was last seen of each stream, by which its successor is recognised
    bodies      bodies of the replies made here
    replies     replies: heads, errors in Durable Streams' terms
    origin      the S2 requests
    asked       one request to a bridged stream
    reads       metadata, catch-up and long-poll
    live        SSE from a read session
    writes      creating, appending, closing, deleting
    bridge      the `Upstream`
"""
