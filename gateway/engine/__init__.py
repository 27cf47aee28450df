"""The life of one request: lookup -> hit | join | fetch | follow | pass -> deliver.

`catchup`, `long_poll` and `sse` decide how a read is answered.  `fetch_table` runs the fetches that readers share.
`relay` passes on everything else and records what writes change.  A reply that is no part of a stream is relayed
uncached: a generic shared cache (RFC 9111) would belong where `relay` is asked for a `NotShareable` answer.
"""
