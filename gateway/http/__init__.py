"""HTTP on the wire, sans-I/O: bytes in, events out, for both sides of the gateway.  No sockets, no clock."""
