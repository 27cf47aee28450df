"""Live reads: one live request per stream at the origin, and the fan-out of its bytes to all live clients."""
