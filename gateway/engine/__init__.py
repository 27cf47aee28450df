"""The life of one request: lookup -> hit | join | fetch | follow | pass -> deliver.

`catchup` and `tail` decide how a read is answered, `fetches` runs the fetches that readers share, `relay` passes on what
is no read and tells the tape store what a write changed.  A reply that is no part of a stream is relayed uncached: a
generic shared cache (RFC 9111) would sit where `relay.get` is called for a `NotShareable` answer.
"""
