"""HTTP/2 (RFC 9113) without I/O, for either side: bytes and the time in, events and bytes out.

`session` is the server's side, towards clients; `client_session` is the client's, towards origins.

`h2` is not used here: it takes 121 us of processor time to read a small request and write its answer, ten times as much
as this gateway takes for a remembered answer over HTTP/1.1.  The tests use `h2` as the peer, and require the same
verdicts of both.
"""
