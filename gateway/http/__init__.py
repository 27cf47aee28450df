"""HTTP parsing and serialisation, sans-I/O, for both sides of the gateway.  No sockets, no clock."""
