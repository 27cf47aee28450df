"""S2's wire formats as pure functions and incremental parsers: no sockets, no clocks, no randomness of their own."""
