"""HTTP/2 as a server speaks it (RFC 9113), sans-I/O: bytes and the time in, events and bytes out.

`h2` is not used here: reading a small request and writing its answer takes it 121 us of processor time, ten times what
this gateway takes for a remembered answer over HTTP/1.1.  The tests use it as a client, and hold both to the same
verdicts.
"""
