"""The Durable Streams wire format as pure functions: no sockets, no clocks, no randomness of their own."""
