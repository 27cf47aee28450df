"""The server side of HTTP/2 (RFC 9113) without I/O: bytes and the time in, events and bytes out.

`h2` is not used here: it takes 121 us of processor time to read a small request and write its answer, ten times what
this gateway takes for a remembered answer over HTTP/1.1.  The tests use `h2` as a client, and hold both to the same
verdicts.
"""
