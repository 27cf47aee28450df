"""Live reads: one follower per stream at the origin, and a topic that fans its bytes out to every live client."""
