"""Durable Streams on the wire, pure: no sockets, no clocks, no randomness of its own."""
