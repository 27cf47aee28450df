"""HTTP/2 (RFC 9113) without I/O, for both sides: bytes and the time in, events and bytes out.

`session` is the server's side, for clients.  `client_session` is the client's side, for origins.

The gateway does not use the library `h2`.  `h2` takes 121 us of processor time for a small request and its answer.
That is ten times the time of an answer that is repeated from memory over HTTP/1.1.  The tests use `h2` as the peer, and
require that the gateway and `h2` accept and refuse the same input.
"""
